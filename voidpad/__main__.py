"""The program `voidpad`, and `python -m voidpad`."""

import sys


def main() -> None:
    """Import the command line and run it. Ctrl-C during the imports prints one line, no traceback."""
    try:
        from voidpad.commands.process import leave, quick_interrupt

        with quick_interrupt():
            from voidpad.commands.cli import main as run
    except KeyboardInterrupt:
        print("voidpad: interrupted", file=sys.stderr)
        sys.exit(130)
    try:
        run()
    except SystemExit as ending:
        leave(ending.code if isinstance(ending.code, int) else 1 if ending.code else 0)


if __name__ == "__main__":
    main()
