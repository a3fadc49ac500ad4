"""What `vlprune reproduce` runs: models, methods, budgets and benchmarks of the paper's tables, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.methods import Method, get_method, list_methods
from vlprune.methods.in_llm import InLLMMethod
from vlprune.studies.ablation import Parts
from vlprune.studies.efficiency import PER_TILE, WITHOUT_DPP, paper_methods
from vlprune.studies.paper import ALL_TOKENS, PaperTable, table


class Benchmark(NamedTuple):
    """A benchmark of the paper as lmms-eval has it.

    `questions` are in its split, and an answer has about so many `tokens`. Its score is the mean of lmms-eval's
    `metrics` (their sum if `adds_up`) times `factor`. One that is `judged` is scored by a GPT, for which lmms-eval
    needs OPENAI_API_KEY. `part_of` names the benchmark of which it is some of the questions.
    """

    questions: int
    tokens: int
    metrics: tuple[str, ...]
    factor: float = 100
    adds_up: bool = False
    judged: bool = False
    part_of: str | None = None


BENCHMARKS = {
    "gqa": Benchmark(12_578, 3, ("exact_match",)),
    "mmbench_en_dev": Benchmark(4_329, 2, ("gpt_eval_score",), 1),
    "mmbench_cn_dev": Benchmark(4_329, 2, ("gpt_eval_score",), 1),
    "mme": Benchmark(2_374, 2, ("mme_perception_score",), 1),
    "pope": Benchmark(9_000, 2, ("pope_accuracy",)),
    "scienceqa_img": Benchmark(2_017, 2, ("exact_match",)),
    "vqav2_val": Benchmark(214_354, 3, ("exact_match",)),
    "textvqa_val": Benchmark(5_000, 5, ("exact_match",)),
    "vizwiz_vqa_val": Benchmark(4_319, 4, ("exact_match",)),
    "mmvet": Benchmark(218, 150, ("gpt_eval_score",), 1, judged=True),
    "ai2d": Benchmark(3_088, 2, ("exact_match",)),
    "chartqa": Benchmark(2_500, 5, ("relaxed_overall",)),
    "ocrbench": Benchmark(1_000, 10, ("ocrbench_accuracy",), 1000),
    "hallusion_bench_image": Benchmark(951, 60, ("aAcc", "qAcc", "fAcc"), 1, judged=True),
    "mlvu_dev": Benchmark(2_174, 3, ("mlvu_percetion_score",), 1),  # so lmms-eval spells it
    "mvbench": Benchmark(4_000, 3, ("mvbench_accuracy",), 1),
    "longvideobench_val_v": Benchmark(1_337, 2, ("lvb_acc",)),
    "longvideobench_perception": Benchmark(0, 0, ("lvb_acc",), part_of="longvideobench_val_v"),
    "longvideobench_relation": Benchmark(0, 0, ("lvb_acc",), part_of="longvideobench_val_v"),
    "videomme": Benchmark(2_700, 2, ("videomme_perception_score",), 1),
    "videomme_short": Benchmark(0, 0, ("videomme_perception_score",), part_of="videomme"),
    "videomme_medium": Benchmark(0, 0, ("videomme_perception_score",), part_of="videomme"),
    "videomme_long": Benchmark(0, 0, ("videomme_perception_score",), part_of="videomme"),
}
#: In one table a benchmark's score is another: InternVL3's MME adds cognition, efficiency prints POPE's F1.
OTHER_SCORES = {
    ("internvl3", "mme"): Benchmark(2_374, 2, ("mme_perception_score", "mme_cognition_score"), 1, adds_up=True),
    ("efficiency", "pope"): Benchmark(9_000, 2, ("pope_f1_score",)),
}


class Setup(NamedTuple):
    """How a table is run: its name in `vlprune.studies.paper`, the checkpoint, and how the paper shows images to it.

    `model` is None where transformers has no checkpoint of that model. `first` and `step` are milliseconds on an H200
    in eager transformers, one question at a time: to the first token with all tokens and with the table's budgets, and
    for each further token (docs/performance.md). `scale` times those of a model that was measured.
    `layers` are the LLM's.
    """

    paper: str
    model: str | None
    first: tuple[float, float]
    step: float
    scale: float = 1.0
    layers: int = 32
    dual_encoder: str | None = "auto"
    tiles: int = 1
    resolution: int | None = None
    frames: int = 0
    tasks: tuple[str, ...] = ()


LLAVA, NEXT = ((49.4, 76.4), 45.0), ((120.0, 60.3), 49.5)
SETUPS = {
    "llava-1.5-7b": Setup("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf", *LLAVA),
    "llava-1.5-13b": Setup("llava-1.5-13b", "llava-hf/llava-1.5-13b-hf", *LLAVA, scale=13 / 7, layers=40),
    "llava-next-7b": Setup("llava-next-7b", "llava-hf/llava-v1.6-vicuna-7b-hf", *NEXT, tiles=5, resolution=672),
    "llava-next-13b": Setup(
        "llava-next-13b", "llava-hf/llava-v1.6-vicuna-13b-hf", *NEXT, scale=13 / 7, layers=40, tiles=5, resolution=672
    ),
    "video": Setup("video", None, (524.0, 283.0), 39.5, layers=28, frames=64),
    "internvl3": Setup(
        "internvl3-8b", "OpenGVLab/InternVL3-8B-hf", *NEXT, layers=28, dual_encoder=None, resolution=896
    ),
    "efficiency": Setup(
        "efficiency", "llava-hf/llava-v1.6-vicuna-7b-hf", *NEXT, tiles=5, resolution=672, tasks=("pope",)
    ),
    "significance": Setup(
        "significance", "llava-hf/llava-v1.6-vicuna-7b-hf", *NEXT, tiles=5, resolution=672, tasks=("mme",)
    ),
}


@dataclass(frozen=True)
class Cell:
    """A row of the table at a budget, and its method; None keeps all tokens."""

    row: str
    keep: float
    method: Method | None

    @property
    def name(self) -> str:
        """The name under which its answers are kept."""
        return ALL_TOKENS if self.method is None else f"{self.row}@{self.keep:g}"


@dataclass(frozen=True)
class Plan:
    """What is to be run for a table. `limit` questions are asked of each benchmark, all if it is None."""

    name: str
    cells: tuple[Cell, ...]
    columns: tuple[str, ...]
    limit: int | None = None

    @property
    def setup(self) -> Setup:
        """How the table is run."""
        return SETUPS[self.name]

    @property
    def paper(self) -> PaperTable:
        """The table as it is printed."""
        return table(self.setup.paper)

    @property
    def tasks(self) -> list[str]:
        """The tasks of lmms-eval: the columns, but those that are a part of another once.

        >>> make_plan("video").tasks
        ['mlvu_dev', 'mvbench', 'longvideobench_val_v', 'videomme']
        """
        return list(dict.fromkeys(self.benchmark(column).part_of or column for column in self.columns))

    def benchmark(self, column: str) -> Benchmark:
        """The benchmark of a column."""
        return OTHER_SCORES.get((self.name, column), BENCHMARKS[column])

    def questions(self, task: str) -> int:
        """How many questions of a task are asked."""
        asked = self.benchmark(task).questions
        return asked if self.limit is None else min(asked, self.limit)

    @property
    def answers(self) -> int:
        """How many answers are generated in all.

        >>> make_plan("llava-1.5-7b").answers == 31 * sum(BENCHMARKS[task].questions for task in make_plan(
        ...     "llava-1.5-7b").tasks)
        True
        """
        return len(self.cells) * sum(self.questions(task) for task in self.tasks)

    @property
    def hours(self) -> float:
        """An estimate: hours on one H200 in eager transformers, one question at a time."""
        one, milliseconds = self.setup, 0.0
        for cell in self.cells:
            first = one.first[0] if cell.method is None else one.first[1]
            for task in self.tasks:
                more = max(0, self.benchmark(task).tokens - 1) * one.step
                milliseconds += one.scale * self.questions(task) * (first + more)
        return milliseconds / 3.6e6


def published_method(name: str, row: str, keep: float) -> Method | None:
    """The method of a row at a budget as the paper counts it, for the model of table `name`; None for all tokens.

    Presets are the methods' own where they published some. Methods inside the LLM have the budget on average over its
    layers; where their first layers alone see more than that, it is what the last ones see.

    >>> published_method("llava-1.5-7b", "visionzip", 64)
    VisionZip(keep=64, contextual=10)
    >>> published_method("video", "script", 16).keep.per_frame
    16
    >>> published_method("llava-1.5-7b", "fastv", 16)
    FastV(keep=16, layer=None)
    """
    one, paper = SETUPS[name], table(SETUPS[name].paper)
    if row == ALL_TOKENS:
        return None
    if name == "efficiency" and row in (methods := paper_methods("llava-next-7b", 32)) and keep == PER_TILE * one.tiles:
        return methods[row]
    if row == WITHOUT_DPP:
        return Parts(Budget(per_tile=_count(keep, one.tiles)), dpp=False)
    kind = type(get_method(row))
    preset = f"next-{keep:g}" if one.tiles > 1 else f"{keep:g}"
    if preset in kind.presets and paper.tokens in (576, 2880):
        return get_method(row, preset=preset)
    whole = int(keep * (one.frames or 1))
    if issubclass(kind, InLLMMethod):
        average = get_method(row, keep=Budget(layer_average=whole))
        try:
            average.accounting(paper.tokens * (one.frames or 1), layers=one.layers)
        except ValueError:  # it cannot go down to that
            return get_method(row, keep=whole)
        return average
    if one.frames:
        return get_method(row, keep=Budget(per_frame=int(keep)))
    return get_method(row, keep=Budget(per_tile=_count(keep, one.tiles)) if one.tiles > 1 else int(keep))


def _count(keep: float, tiles: int) -> int:
    """A budget per image as one per tile."""
    return max(1, round(keep / tiles))


def make_plan(
    name: str,
    *,
    rows: Sequence[str] = (),
    keeps: Sequence[float] = (),
    columns: Sequence[str] = (),
    limit: int | None = None,
) -> Plan:
    """The whole of a table, or some `rows` (other methods may be among them), budgets and columns of it.

    All tokens are always asked, as the others are relative to them.

    >>> plan = make_plan("llava-next-7b", rows=["script"], keeps=[320], columns=["pope", "mme"], limit=100)
    >>> [cell.name for cell in plan.cells], plan.answers
    (['all tokens', 'script@320'], 400)
    """
    if name not in SETUPS:
        raise UserError(f"{name}: no table that can be run; choose from {', '.join(SETUPS)}.")
    paper = table(SETUPS[name].paper)
    known = SETUPS[name].tasks or tuple(paper.benchmarks)
    for column in columns:
        if column not in known:
            raise UserError(f"--tasks {column}: the table {name} has {', '.join(known)}.")
    for row in rows:
        if row not in (*paper.rows, *list_methods()):
            raise UserError(f"--methods {row}: choose from {', '.join(dict.fromkeys([*paper.rows, *list_methods()]))}.")
    wanted = [row for row in rows or paper.rows if row != ALL_TOKENS]
    budgets = list(keeps) or paper.budgets
    pairs = [(row, keep) for keep in budgets for row in wanted]
    if not rows and not keeps:
        pairs = [pair for pair in paper.values if pair[0] != ALL_TOKENS]
    cells = [Cell(ALL_TOKENS, paper.tokens, None)]
    cells += [Cell(row, keep, published_method(name, row, keep)) for row, keep in pairs]
    return Plan(name, tuple(cells), tuple(column for column in known if not columns or column in columns), limit)
