"""The errors of vlprune's own; wrong arguments raise `ValueError` or `TypeError`."""


class UnsupportedModel(TypeError):
    """The model's class has no family in `vlprune.models`; the message names the nearest one."""


class MethodError(TypeError, ValueError):
    """A method of somebody else raised an error, which is the cause, or returned what does not fit; it is named."""


class UserError(Exception):
    """Something the user can put right; the message is one plain sentence, and the program ends with code 2."""
