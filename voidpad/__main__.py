"""The program `voidpad`, and `python -m voidpad`."""

import sys


def main() -> None:
    """Import the command line and run it. The import is inside, so that Ctrl-C during it is one line too."""
    try:
        from voidpad.commands.cli import main as run
    except KeyboardInterrupt:
        print("voidpad: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
