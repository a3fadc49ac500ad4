"""Checks of settings that several methods share; those of the graph are in `vlprune.selection.graph.check_graph`."""

from vlprune.selection.checks import check_choice


def check_query_settings(relevance: str, sign: int | None, pooling: str) -> None:
    """Raise `ValueError` unless these settings, which say how question and tokens are compared, are allowed.

    >>> check_query_settings("auto", 2, "mean")
    Traceback (most recent call last):
    ...
    ValueError: sign=2: choose from None, 1, -1.
    """
    check_choice("relevance", relevance, ("auto", "llm", "clip", "none"))
    if isinstance(sign, bool):  # True equals 1
        raise ValueError(f"sign={sign!r}: choose from None, 1, -1.")
    check_choice("sign", sign, (None, 1, -1))
    check_choice("pooling", pooling, ("auto", "mean"))


def check_reads_question(name: str, relevance: str) -> None:
    """Raise `ValueError` if a method that ranks by relevance alone is told to do without the question."""
    if relevance == "none":
        raise ValueError(f"relevance='none': {name} ranks by relevance alone; choose from 'auto', 'llm', 'clip'.")
