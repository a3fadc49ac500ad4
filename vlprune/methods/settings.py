"""Checks of settings that several methods share; those of the graph are in `vlprune.selection.graph.check_graph`."""

from vlprune.selection.checks import check_choice


def check_query_settings(relevance: str, sign: int | None) -> None:
    """Raise `ValueError` unless `relevance` and `sign`, which say how question and tokens are compared, are allowed.

    >>> check_query_settings("auto", 2)
    Traceback (most recent call last):
    ...
    ValueError: sign=2: choose from None, 1, -1.
    """
    check_choice("relevance", relevance, ("auto", "llm", "clip"))
    if isinstance(sign, bool):  # True equals 1
        raise ValueError(f"sign={sign!r}: choose from None, 1, -1.")
    check_choice("sign", sign, (None, 1, -1))
