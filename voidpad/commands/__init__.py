"""The commands, one module each; voidpad.cli puts them together."""
