"""The command line: `voidpad COMMAND`. Commands live in voidpad/commands, one module each."""

from __future__ import annotations

import sys
import traceback

import click
import typer

from voidpad.commands import calibrate, generate, merge, report, sweep, train, view
from voidpad.errors import ConfigError, VoidpadError

app = typer.Typer(
    name="voidpad",
    help="Train, decode, evaluate and inspect masked diffusion language models that know when to stop.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(generate.generate)
app.command()(generate.plans)
app.command()(train.train)
app.command()(sweep.sweep)
app.command()(report.report)
app.command()(calibrate.calibrate)
app.command()(merge.merge)
app.command()(view.view)


def main() -> None:
    """Run a command. A failure is one line; status 2 is wrong usage; --debug adds the traceback."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        sys.exit(app(arguments, standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = isinstance(error, VoidpadError)
        text = (
            " ".join(str(error).split())
            if known
            else f"{type(error).__name__}: {error} (--debug shows where)"
        )
        fail(text, 2 if isinstance(error, ConfigError) else 1)


def fail(message: str, status: int) -> None:
    print(f"voidpad: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
