"""The command line: `voidpad COMMAND`. Commands live in voidpad/commands, one module each."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer

from voidpad.commands import analyze, bench, calibrate, demo, generate, merge, report, sweep, train, view
from voidpad.commands import eval as evaluation
from voidpad.errors import ConfigError, VoidpadError
from voidpad.fast.memory import keep_freed_memory

app = typer.Typer(
    name="voidpad",
    help="Train, decode, evaluate and inspect masked diffusion language models that know when to stop.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(generate.generate)
app.command()(generate.plans)
app.command()(train.train)
app.add_typer(train.data, name="data")
app.command("eval")(evaluation.evaluate)
app.command()(sweep.sweep)
app.command()(report.report)
app.command()(calibrate.calibrate)
app.command()(merge.merge)
app.command()(view.view)
app.add_typer(analyze.app, name="analyze")
app.command()(demo.demo)
app.command()(bench.bench)


# Newer releases of typer carry their own copy of click: a public name leads to whichever is in use.
BadUsage: Any = typer.BadParameter.__mro__[1]
BadCommand: Any = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run a command. A failure is one line; status 2 is wrong usage; --debug adds the traceback."""
    keep_freed_memory()
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        sys.exit(app(arguments or ["--help"], standalone_mode=False))
    except BadUsage as error:
        command = error.ctx.command_path if error.ctx else "voidpad"
        fail(f"{error.format_message().rstrip('.')}; see {command} --help.", error.exit_code)
    except BadCommand as error:
        fail(error.format_message(), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        fail("interrupted", 130)
    except BrokenPipeError:  # the reader has gone; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = isinstance(error, VoidpadError)
        text = str(error) if known else f"{type(error).__name__}: {error} (--debug shows where)"
        fail(text, 2 if isinstance(error, ConfigError) else 1)


def fail(message: str, status: int) -> None:
    print(f"voidpad: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
