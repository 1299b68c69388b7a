"""`python -m voidpad COMMAND` is the same as `voidpad COMMAND`."""

from voidpad.commands.cli import main

main()
