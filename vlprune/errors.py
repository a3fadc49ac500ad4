"""The errors of vlprune's own; wrong arguments raise `ValueError` or `TypeError`."""


class UnsupportedModel(TypeError):
    """The model's class has no family in `vlprune.models`; the message names the nearest one."""


class UserError(Exception):
    """Something the user can put right; the message is one plain sentence, and the program ends with code 2."""
