"""How many visual tokens of an image or video may enter the LLM."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral


@dataclass(frozen=True)
class Budget:
    """A number of tokens per image or whole video, a ratio, a quota for each of its parts, or as many as it needs.

    `tokens` and `ratio` are for an image or video as a whole: its tiles or frames compete. `per_tile` is for images
    and `per_frame` for videos, and both may be given: each tile (the base view and the thumbnail are tiles too) or
    frame keeps that many, or all it has if that is less. With `compete=True` the quotas are added up and the tiles
    or frames compete for the sum.

    `adaptive` and `mean` go together: an image keeps tokens as long as the best one left adds at least the share
    `adaptive` of what the first one added, `mean / 4` tokens at least and `4 * mean` at most. Which share comes to
    `mean` tokens on average depends on the images: `Budget.fit` finds it.

    `layer_average` is how papers count methods that drop tokens inside the LLM: the mean over its layers of the tokens
    that each layer sees. Such a method keeps as many at last as come nearest to it. For other methods, whose tokens
    all layers see, it is the same as `tokens`.

    >>> Budget(tokens=64).count(576), Budget(ratio=0.25).count(576)
    (64, 144)
    >>> Budget.of(1).count(576), Budget.of(1.0).count(576)   # an int counts tokens, a float is a ratio
    (1, 576)
    >>> Budget(per_tile=64).shares("image", [576] * 5)   # LLaVA-NeXT in the papers: 2,880 tokens, 320 are kept
    [64, 64, 64, 64, 64]
    """

    tokens: int | None = None
    ratio: float | None = None
    per_tile: int | None = None
    per_frame: int | None = None
    compete: bool = False
    adaptive: float | None = None
    mean: int | None = None
    layer_average: int | None = None

    def __post_init__(self) -> None:
        quota = self.per_tile is not None or self.per_frame is not None
        if (self.adaptive is None) != (self.mean is None):
            raise ValueError("adaptive= and mean= go together, as in Budget(adaptive=0.05, mean=64).")
        alone = (self.tokens, self.ratio, self.mean, self.layer_average)
        if sum(value is not None for value in alone) + quota != 1:
            raise ValueError(
                "Budget takes exactly one of tokens=, ratio=, layer_average=, a quota (per_tile=, per_frame= or both) "
                "and adaptive= with mean=."
            )
        if self.compete and not quota:
            raise ValueError("compete=True goes with per_tile= or per_frame=; tokens= and ratio= always compete.")
        for name in ("tokens", "per_tile", "per_frame", "mean", "layer_average"):
            value = getattr(self, name)
            label = "keep" if name == "tokens" else name
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{label}={value!r}: a number of tokens must be an int.")
            if value is not None and value <= 0:
                raise ValueError(f"{label}={value}: at least one token must be kept.")
        if self.ratio is not None:
            if isinstance(self.ratio, bool) or not isinstance(self.ratio, float):
                raise TypeError(f"keep={self.ratio!r}: a ratio must be a float.")
            if not 0.0 < self.ratio <= 1.0:
                raise ValueError(f"keep={self.ratio}: a ratio must lie in (0, 1].")
        if self.adaptive is not None:
            if isinstance(self.adaptive, bool) or not isinstance(self.adaptive, (int, float)):
                raise TypeError(f"adaptive={self.adaptive!r}: a share must be a number.")
            if not 0.0 <= self.adaptive <= 1.0:
                raise ValueError(f"adaptive={self.adaptive}: a share must lie in [0, 1].")

    @classmethod
    def fit(cls, gains: "Iterable[Sequence[float]]", mean: int) -> "Budget":
        """The adaptive budget that keeps `mean` tokens on average, or a little less, of the images it is shown.

        `gains` are what each image's tokens added in order of choice: `record.gains` of calls with any adaptive budget
        of that mean, `Budget(adaptive=0, mean=mean)` for instance.

        >>> flat, rich = [1.0] + [0.1] * 15, [1.0] + [0.5] * 15
        >>> budget = Budget.fit([flat, rich], mean=9)
        >>> 0.1 < budget.adaptive <= 0.5, [budget.needed(one) for one in (flat, rich)]
        (True, [2, 16])
        """
        shares = [[gain / max(image[0], 1e-30) for gain in image] for image in map(list, gains) if image]
        if not shares:
            raise ValueError("gains has no images: pass what at least one image's tokens added.")

        def kept(share: float) -> float:
            budget = cls(adaptive=share, mean=mean)
            return sum(budget.needed(image) for image in shares) / len(shares)

        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if kept(middle) > mean else (low, middle)
        return cls(adaptive=high, mean=mean)

    def needed(self, gains: Sequence[float]) -> int:
        """How many of an image's tokens an adaptive budget keeps, whose choices added `gains`, one after the other.

        >>> Budget(adaptive=0.1, mean=4).needed([1.0, 0.5, 0.2, 0.05, 0.01])
        3
        """
        assert self.adaptive is not None
        least = self.adaptive * gains[0]
        enough = next((i for i, gain in enumerate(gains) if gain < least), len(gains))
        low, high = self.bounds(len(gains))
        return min(max(enough, low), high)

    def bounds(self, n: int) -> tuple[int, int]:
        """The fewest and the most of `n` tokens that an adaptive budget keeps.

        >>> Budget(adaptive=0.1, mean=64).bounds(576), Budget(adaptive=0.1, mean=64).bounds(100)
        ((16, 256), (16, 100))
        """
        assert self.mean is not None
        return min(n, max(1, self.mean // 4)), min(n, 4 * self.mean)

    @classmethod
    def of(cls, keep: "int | float | Budget") -> "Budget":
        """The budget that `keep` means: an int is a number of tokens, a float a ratio in (0, 1].

        >>> Budget.of(64) == Budget(tokens=64), Budget.of(0.1) == Budget(ratio=0.1)
        (True, True)
        """
        if isinstance(keep, Budget):
            return keep
        if isinstance(keep, Integral) and not isinstance(keep, bool):
            return cls(tokens=int(keep))
        if not isinstance(keep, float):
            raise ValueError(f"keep={keep!r}: pass a number of tokens (int), a ratio in (0, 1] (float) or a Budget.")
        return cls(ratio=float(keep))

    def count(self, n: int) -> int:
        """The number of tokens to keep of `n` that compete: a whole number from 1 to `n`.

        A ratio is rounded to the nearest whole number (halves up), and never below one token. A quota is that of
        one tile or frame; of an adaptive budget it is the mean.

        >>> Budget(ratio=0.1).count(576), Budget(ratio=0.001).count(576), Budget(per_tile=64).count(24)
        (58, 1, 24)
        """
        if self.ratio is not None:
            return min(n, max(1, int(self.ratio * n + 0.5)))
        if self.mean is not None:
            return min(n, self.mean)
        tokens = self._whole_tokens
        if tokens is None:
            return min(n, self.per_tile or self.per_frame or n)
        if tokens > n:
            raise ValueError(f"keep={tokens}: the image has only {n} visual tokens.")
        return tokens

    @property
    def _whole_tokens(self) -> int | None:
        """The number of tokens of a whole image or video, where the budget names one."""
        return self.tokens if self.tokens is not None else self.layer_average

    def shares(self, kind: str, sizes: Sequence[int], variable_length: bool = False) -> int | list[int]:
        """What an "image" or "video" keeps whose parts have these sizes: one number for all, or one for each part.

        Where the sizes of images vary by model (`variable_length`), one with fewer tokens than asked for keeps all.

        >>> Budget(tokens=99).shares("image", [48], variable_length=True)
        48
        >>> Budget(per_frame=4, compete=True).shares("video", [9, 9])
        8
        """
        tokens = self._whole_tokens
        if tokens is not None or self.ratio is not None or self.mean is not None:
            n = sum(sizes)
            return n if variable_length and tokens is not None and tokens > n else self.count(n)
        quota, name = (self.per_tile, "per_tile") if kind == "image" else (self.per_frame, "per_frame")
        if quota is None:
            raise ValueError(f"keep={self}: there is no quota for the {kind} in the prompt; add {name}= to the Budget.")
        shares = [min(quota, size) for size in sizes]
        return sum(shares) if self.compete else shares

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens} tokens"
        if self.layer_average is not None:
            return f"{self.layer_average} tokens per layer on average"
        if self.ratio is not None:
            return f"{self.ratio:g} of the tokens"
        if self.mean is not None:
            return f"{self.mean} tokens on average, above a share of {self.adaptive:.3g}"
        named = (("tile", self.per_tile), ("frame", self.per_frame))
        quotas = [f"{count} per {name}" for name, count in named if count is not None]
        return " and ".join(quotas) + (", competing" if self.compete else "")
