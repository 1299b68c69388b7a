"""The program `voidpad`, and `python -m voidpad`."""

import sys


def main() -> None:
    """Import the command line and run it. Ctrl-C during the imports prints one line, no traceback."""
    try:
        from voidpad.commands.process import quick_interrupt

        with quick_interrupt():
            from voidpad.commands.cli import main as run
    except KeyboardInterrupt:
        print("voidpad: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
