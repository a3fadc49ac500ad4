"""What one call kept of one image, and why."""

from dataclasses import dataclass, field

from torch import Tensor

from vlprune.devices import Stopwatch
from vlprune.types import GridPart


@dataclass(frozen=True)
class Record:
    """One image or video of the most recent call. Tensors stay on the model's device until you move them.

    The tokens are numbered as a method sees them: without structure (newlines, class tokens). `kept` (m,) are the
    kept ones in ascending order; `order` (k,) is the order of choice, None where each tile or frame has one of its
    own, and `gains` (k,) what each choice added, None where the method does not say; where a method stopped before k,
    they go on with −1 and 0, and `choices` has the tokens alone; `redundancy`, `relevance` and `ranking` (n,) are
    scores, None where the method has none. `before` and `after` count the tokens, `structure` counts structural tokens
    (before, after). `parts` are the tiles or frames, each with its name, grid and tokens; `grid` is (rows, columns) of
    them all where they make up a grid, else (1, n). `kind` is "image" or "video", `row` the batch row and `image` the
    number in that row. `query` is the text that was asked, `source` says whose embeddings gave the relevance ("llm" or
    "clip") and `sign` the sign that was put on the similarity.

    A method inside the LLM adds `stages`: (layer, tokens left from that layer on) of each cut, and `entered`, how many
    entered the LLM, which has `layers` layers; `kept` and `after` are then what the last layers see, and a token
    that others were merged into stands under its own number.

    >>> import torch
    >>> record = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2))
    >>> record.after, sorted(record.scores)
    (2, [])
    """

    kept: Tensor
    before: int
    after: int
    grid: tuple[int, int]
    row: int = 0
    image: int = 0
    order: Tensor | None = field(default=None, repr=False)
    gains: Tensor | None = field(default=None, repr=False)
    redundancy: Tensor | None = field(default=None, repr=False)
    relevance: Tensor | None = field(default=None, repr=False)
    ranking: Tensor | None = field(default=None, repr=False)
    structure: tuple[int, int] = (0, 0)
    parts: tuple[GridPart, ...] = field(default=(), repr=False)
    kind: str = "image"
    query: str | None = None
    source: str | None = None
    sign: int | None = None
    stages: tuple[tuple[int, Tensor], ...] = field(default=(), repr=False)
    entered: int | None = None
    layers: int = 1
    stopwatch: Stopwatch | None = field(default=None, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """Seconds spent on choosing, from features and question, both embedded, to the kept tokens."""
        return self.stopwatch.seconds if self.stopwatch is not None else 0.0

    @property
    def entering(self) -> int:
        """How many tokens entered the LLM: how papers count what methods before the LLM keep."""
        return self.after if self.entered is None else self.entered

    @property
    def layer_average(self) -> float:
        """How many tokens a layer of the LLM sees on average: how papers count what methods inside the LLM keep."""
        sizes = [self.entering, *(len(kept) for _, kept in self.stages)]
        ends = [*(layer for layer, _ in self.stages), self.layers]
        return sum(size * (end - begin) for size, begin, end in zip(sizes, [0, *ends], ends)) / self.layers

    @property
    def choices(self) -> list[int]:
        """The tokens of `order`, up to where the method stopped; none where there is no order.

        >>> import torch
        >>> Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), order=torch.tensor([3, 0, -1])).choices
        [3, 0]
        """
        return [] if self.order is None else [token for token in self.order.tolist() if token >= 0]

    @property
    def scores(self) -> dict[str, Tensor]:
        """The scores that the method gave, by name, each (n,)."""
        named = {"redundancy": self.redundancy, "relevance": self.relevance, "ranking": self.ranking}
        return {name: score for name, score in named.items() if score is not None}
