"""How many visual tokens of an image may enter the LLM."""

from dataclasses import dataclass
from numbers import Integral


@dataclass(frozen=True)
class Budget:
    """A number of tokens per image, or a ratio of what the image has: exactly one of the two.

    >>> Budget(tokens=64).count(576), Budget(ratio=0.25).count(576)
    (64, 144)
    >>> Budget.of(1).count(576), Budget.of(1.0).count(576)   # an int counts tokens, a float is a ratio
    (1, 576)
    """

    tokens: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.ratio is None):
            raise ValueError("Budget takes exactly one of tokens= and ratio=.")
        if self.tokens is not None:
            if isinstance(self.tokens, bool) or not isinstance(self.tokens, int):
                raise TypeError(f"keep={self.tokens!r}: a number of tokens must be an int.")
            if self.tokens <= 0:
                raise ValueError(f"keep={self.tokens}: at least one token must be kept.")
        if self.ratio is not None:
            if isinstance(self.ratio, bool) or not isinstance(self.ratio, float):
                raise TypeError(f"keep={self.ratio!r}: a ratio must be a float.")
            if not 0.0 < self.ratio <= 1.0:
                raise ValueError(f"keep={self.ratio}: a ratio must lie in (0, 1].")

    @classmethod
    def of(cls, keep: "int | float | Budget") -> "Budget":
        """The budget that `keep` means: an int is a number of tokens, a float a ratio in (0, 1].

        >>> Budget.of(64)
        Budget(tokens=64, ratio=None)
        """
        if isinstance(keep, Budget):
            return keep
        if isinstance(keep, Integral) and not isinstance(keep, bool):
            return cls(tokens=int(keep))
        if not isinstance(keep, float):
            raise ValueError(f"keep={keep!r}: pass a number of tokens (int), a ratio in (0, 1] (float) or a Budget.")
        return cls(ratio=float(keep))

    def count(self, n: int) -> int:
        """The number of tokens to keep of an image that has `n`: a whole number from 1 to `n`.

        A ratio is rounded to the nearest whole number (halves up), and never below one token.

        >>> Budget(ratio=0.1).count(576), Budget(ratio=0.001).count(576)
        (58, 1)
        """
        if self.ratio is not None:
            return min(n, max(1, int(self.ratio * n + 0.5)))
        assert self.tokens is not None
        if self.tokens > n:
            raise ValueError(f"keep={self.tokens}: the image has only {n} visual tokens.")
        return self.tokens

    def __str__(self) -> str:
        return f"{self.tokens} tokens" if self.tokens is not None else f"{self.ratio:g} of the tokens"
