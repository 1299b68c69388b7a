"""The command line: `voidpad COMMAND`. Commands live in voidpad/commands, one module each."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from voidpad.commands import (
    analyze,
    bench,
    calibrate,
    demo,
    generate,
    merge,
    plans,
    report,
    sweep,
    train,
    view,
)
from voidpad.commands import eval as evaluation
from voidpad.engine.memory import keep_freed_memory
from voidpad.errors import ConfigError, VoidpadError

app = typer.Typer(
    name="voidpad",
    help="Train, decode, evaluate and inspect masked diffusion language models that know when to stop.",
    epilog="--debug, with any command, shows where an error came from.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(generate.generate)
app.command()(plans.plans)
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
    keep_freed_memory()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # or it warns at import, and in every product
    guarded(lambda arguments: app(arguments or ["--help"], standalone_mode=False))


def guarded(run: Callable[[list[str]], Any], *, debug: bool = False) -> None:
    """Run a command with the arguments of this process. A failure is one line; status 2 is wrong usage;
    --debug adds the traceback, `debug` that of what nobody foresaw."""
    asked = "--debug" in sys.argv
    try:
        sys.exit(run([word for word in sys.argv[1:] if word != "--debug"]) or 0)
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
        if asked or (debug and not isinstance(error, VoidpadError)):
            traceback.print_exc()
        fail(told(error, asked or debug), 2 if isinstance(error, ConfigError) else 1)


def told(error: Exception, traced: bool) -> str:
    if isinstance(error, VoidpadError):
        return str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}."
    return f"{type(error).__name__}: {error}" + ("" if traced else " (--debug shows where)")


def fail(message: str, status: int) -> None:
    print(f"voidpad: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
