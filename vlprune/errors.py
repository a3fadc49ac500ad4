"""The errors of vlprune's own; wrong arguments raise `ValueError` or `TypeError`."""


class UnsupportedModel(TypeError):
    """The model's class has no family in `vlprune.models`; the message names the nearest one."""
