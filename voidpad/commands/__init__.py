"""The commands, one module each; voidpad.commands.cli puts them together."""
