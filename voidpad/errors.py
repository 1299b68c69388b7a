"""What can go wrong, as one tree. Every message is one line: the field, the value, the fix."""


class VoidpadError(Exception):
    """Anything voidpad refuses to do; the command line prints it without a traceback."""


class ConfigError(VoidpadError):
    """A setting, or a combination of settings, that cannot work. Exit status 2."""


class RoleError(VoidpadError):
    """A token role (mask, eos, void, rainbow) that is missing or ambiguous."""


class WeightsError(VoidpadError):
    """A checkpoint that is damaged, incomplete, unsafe or of an unknown kind."""


class DataError(VoidpadError):
    """Input data that cannot be read or has nothing in it."""


class SandboxError(VoidpadError):
    """Generated code cannot be run as safely as was asked."""
