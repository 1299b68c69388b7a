"""The command line: `voidpad COMMAND`. Commands live in voidpad/commands, one module each, imported when called."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from typing import Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from voidpad.commands.process import prepare_process, quick_interrupt
from voidpad.errors import ConfigError, VoidpadError, install_command, printable

# The commands in the order of --help: `module:function` or `module:typer app` in this package, and what the list says.
COMMANDS = {
    "generate": ("generate:generate", "Answer prompts, or fill the gaps of a text."),
    "chat": ("chat:chat", "Talk with a model in the terminal."),
    "plans": ("plans:plans", "List the ways to decode, or the fields of one of them."),
    "train": ("train:train", "Train a model from a recipe."),
    "data": ("data:data", "Prepare training data and look at it."),
    "eval": ("eval:evaluate", "Score a model on benchmarks."),
    "join": ("eval:join", "Join the parts of a divided evaluation."),
    "sweep": ("sweep:sweep", "Run the cells of a recipe that have no results yet."),
    "report": ("sweep:report", "Tables and figures from finished runs."),
    "recipes": ("plans:recipes", "List the recipes that `voidpad train` and `voidpad sweep` take by name."),
    "calibrate": ("measure:calibrate", "Choose VoidExpansion's thresholds and window for a checkpoint."),
    "merge": ("export:merge", "Merge a LoRA adapter into its base and save one checkpoint."),
    "export": ("export:export", "Write a whole checkpoint for other engines."),
    "view": ("analyze:view", "Replay recorded decodes in one self-contained page."),
    "analyze": ("analyze:app", "See why: EOS priors, EOS overflow, attention."),
    "demo": ("demo:demo", "See EOS overflow, and VOID padding without it, in a few minutes."),
    "bench": ("measure:bench", "Time exact and approximate decoding of the same prompts."),
    "serve": ("serve:serve", "Serve a model over HTTP with OpenAI's interface."),
}


class _LazyGroup(TyperGroup):
    """A group whose commands are only names until one is called: torch alone takes a second to import."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=about) for name, (_, about) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command_named(name) if name else command, rest


def command_named(name: str) -> Any:
    """The command or group of this name, from its module."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    with quick_interrupt():
        target = getattr(import_module(f"voidpad.commands.{module}"), attribute)
    command: Any
    if isinstance(target, typer.Typer):
        command = typer.main.get_group(target)
    else:
        single = typer.Typer(add_completion=False)
        single.command(name)(target)
        command = typer.main.get_command(single)
    command.name = name
    return command


app = typer.Typer(
    name="voidpad",
    help="Train, decode, evaluate and inspect masked diffusion language models that know when to stop.",
    epilog="--debug, with any command, shows where an error came from.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    cls=_LazyGroup,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"voidpad {metadata.version('voidpad')}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    pass  # the help text is the app's


# Newer releases of typer carry their own copy of click: a public name leads to whichever is in use.
BadUsage: Any = typer.BadParameter.__mro__[1]
BadCommand: Any = typer.BadParameter.__mro__[2]
LINE = 2000  # characters of an error that are shown; some repeat a value as long as the user made it


def main() -> None:
    prepare_process()
    # bitsandbytes warns at import about kernels nobody asked for
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    guarded(lambda arguments: app(arguments or ["--help"], prog_name="voidpad", standalone_mode=False))


def guarded(run: Callable[[list[str]], Any], *, debug: bool = False) -> None:
    """Run a command with this process's arguments and exit. A failure is one line; status 2 is wrong usage.

    `--debug` among the arguments prints tracebacks too; `debug=True` prints those of unexpected errors always.
    """
    traced = "--debug" in sys.argv
    try:
        status = run([word for word in sys.argv[1:] if word != "--debug"])
        if status == 130:  # typer's answer to an interrupt
            raise KeyboardInterrupt
        sys.stdout.flush()  # here, where a reader that has gone is no error, and not at exit, where it is
        sys.exit(status or 0)
    except BadUsage as error:
        if not error.format_message():  # a group without a command has shown its help
            sys.exit(error.exit_code)
        hint = f"see {error.ctx.command_path if error.ctx else 'voidpad'} --help"
        unknown_option = hasattr(error, "option_name")
        if unknown_option and error.ctx and any(one.name == "settings" for one in error.ctx.command.params):
            hint += "; fields of a plan go as --set FIELD=VALUE"
        message = error.format_message().replace(": Value error, ", ": ")  # pydantic's words, through typer
        _fail(f"{message.rstrip('.')}; {hint}.", error.exit_code)
    except BadCommand as error:
        _fail(error.format_message(), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except SystemExit as ending:  # rich turns a reader that has gone into status 1
        if any(isinstance(cause, BrokenPipeError) for cause in _causes(ending)):
            ending.code = 0
        raise
    except BrokenPipeError:  # nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
            _fail("interrupted", 130)  # some packages turn an interrupt of their import into an ImportError
        if traced or (debug and not isinstance(error, VoidpadError)):
            import traceback

            traceback.print_exc()
        _fail(message_of(error, traced or debug), 2 if isinstance(error, ConfigError) else 1)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those it was raised from or while handling."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def message_of(error: Exception, traced: bool) -> str:
    """The line a user sees; `traced` says that a traceback was printed before it."""
    if isinstance(error, VoidpadError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name and (extras := _extras_with(error.name)):
        # Several extras bring some packages: name the one that is for this command.
        command = "train" if sys.argv[1:2] == ["data"] else "".join(sys.argv[1:2])
        extra = command if command in extras else extras[0]
        return f"{error.name.partition('.')[0]} is not installed; {install_command(extra)}."
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}."
    return f"{type(error).__name__}: {error}" + ("" if traced else " (--debug shows where)")


def _extras_with(module: str) -> list[str]:
    """The extras of voidpad that install a module, as the package's metadata lists them."""
    wanted = module.partition(".")[0].replace("_", "-").lower()
    extras = []
    for requirement in metadata.requires("voidpad") or []:
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].replace("_", "-").lower()
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if package == wanted and extra and extra[1] not in ("all", "dev"):
            extras.append(extra[1])
    return extras


def _fail(message: str, status: int) -> None:
    line = printable(" ".join(message.split()))
    print(f"voidpad: {line if len(line) <= LINE else line[:LINE] + ' ...'}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
