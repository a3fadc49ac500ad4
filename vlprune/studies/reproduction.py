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
from vlprune.studies.reproduction_time import answer_seconds


class Benchmark(NamedTuple):
    """A benchmark of the paper as lmms-eval has it.

    `data` is the dataset's id on the hub, with the split. It has so many `questions`, and an answer about so many
    `tokens`. Its score is the mean of lmms-eval's `metrics` (their sum if `adds_up`) times `factor`; `by_sample`, it is
    the mean over single answers, as lmms-eval's own is right only for all questions in a process of their own. One that
    is `judged` is scored by a GPT, for which lmms-eval needs OPENAI_API_KEY. `part_of` names the benchmark of which it
    is some of the questions. `paper_split` is the paper's, where that is another.
    """

    data: str
    questions: int
    tokens: int
    metrics: tuple[str, ...]
    factor: float = 100
    adds_up: bool = False
    by_sample: bool = False
    judged: bool = False
    part_of: str | None = None
    paper_split: str = ""


def _part(metric: str, whole: str) -> Benchmark:
    """Some of another benchmark's questions."""
    return Benchmark("", 0, 0, (metric,), part_of=whole)


#: By lmms-eval's names. docs/benchmarks.md says where the numbers of questions come from.
BENCHMARKS = {
    "gqa": Benchmark("lmms-lab-encoder/GQA:testdev", 12_578, 3, ("exact_match",)),
    "mmbench_en_dev": Benchmark("lmms-lab-encoder/MMBench:dev", 4_329, 2, ("gpt_eval_score",), 1),
    "mmbench_cn_dev": Benchmark("lmms-lab-encoder/MMBench:dev", 4_329, 2, ("gpt_eval_score",), 1),
    "mme": Benchmark("lmms-lab-encoder/MME:test", 2_374, 2, ("mme_perception_score",), 1),
    "pope": Benchmark("lmms-lab-encoder/POPE:test", 9_000, 2, ("pope_accuracy",)),
    "scienceqa_img": Benchmark("lmms-lab-encoder/ScienceQA:test", 2_017, 2, ("exact_match",)),
    "vqav2_val": Benchmark("lmms-lab-encoder/VQAv2:validation", 214_354, 3, ("exact_match",), paper_split="test-dev"),
    "textvqa_val": Benchmark("lmms-lab-encoder/textvqa:validation", 5_000, 5, ("exact_match",)),
    "vizwiz_vqa_val": Benchmark("lmms-lab-encoder/VizWiz-VQA:val", 4_319, 4, ("exact_match",), paper_split="test"),
    "mmvet": Benchmark("lmms-lab-encoder/MMVet:test", 218, 150, ("gpt_eval_score",), 1, judged=True),
    "ai2d": Benchmark("lmms-lab-encoder/ai2d:test", 3_088, 2, ("exact_match",)),
    "chartqa": Benchmark("lmms-lab-encoder/ChartQA:test", 2_500, 5, ("relaxed_overall",)),
    "ocrbench": Benchmark("echo840/OCRBench:test", 1_000, 10, ("ocrbench_accuracy",), 1000, by_sample=True),
    "hallusion_bench_image": Benchmark(
        "lmms-lab-encoder/HallusionBench:image", 951, 60, ("aAcc", "qAcc", "fAcc"), 1, judged=True
    ),
    "mlvu_dev": Benchmark("sy1998/MLVU_dev:test", 2_174, 3, ("mlvu_percetion_score",), 1),  # so it is spelt there
    "mvbench": Benchmark("OpenGVLab/MVBench:train", 4_000, 3, ("mvbench_accuracy",), 1),
    "longvideobench_val_v": Benchmark("longvideobench/LongVideoBench:validation", 1_337, 2, ("lvb_acc",)),
    "longvideobench_perception": _part("lvb_acc", "longvideobench_val_v"),
    "longvideobench_relation": _part("lvb_acc", "longvideobench_val_v"),
    "videomme": Benchmark("lmms-eval/Video-MME:test", 2_700, 2, ("videomme_perception_score",), 1),
    "videomme_short": _part("videomme_perception_score", "videomme"),
    "videomme_medium": _part("videomme_perception_score", "videomme"),
    "videomme_long": _part("videomme_perception_score", "videomme"),
}
#: In one table a benchmark's score is another: InternVL3's MME adds cognition, efficiency prints POPE's F1.
OTHER_SCORES = {
    ("internvl3", "mme"): BENCHMARKS["mme"]._replace(
        metrics=("mme_perception_score", "mme_cognition_score"), adds_up=True
    ),
    ("efficiency", "pope"): BENCHMARKS["pope"]._replace(metrics=("pope_f1_score",)),
}


class Setup(NamedTuple):
    """How a table is run: its name in `vlprune.studies.paper`, the checkpoint, and how the paper shows images to it.

    `model` is None where transformers has no checkpoint of that model. An answer takes `scale` times what it takes the
    model `timed_as` (one of `vlprune.studies.reproduction_time.SPEEDS`). `layers` are the LLM's.
    """

    paper: str
    model: str | None
    timed_as: str
    scale: float = 1.0
    layers: int = 32
    dual_encoder: str | None = "auto"
    tiles: int = 1
    resolution: int | None = None
    frames: int = 0
    tasks: tuple[str, ...] = ()


LLAVA, NEXT = "LLaVA-1.5-7B", "LLaVA-NeXT-7B"
NEXT_7B = "llava-hf/llava-v1.6-vicuna-7b-hf"
SETUPS = {
    "llava-1.5-7b": Setup("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf", LLAVA),
    "llava-1.5-13b": Setup("llava-1.5-13b", "llava-hf/llava-1.5-13b-hf", LLAVA, scale=13 / 7, layers=40),
    "llava-next-7b": Setup("llava-next-7b", NEXT_7B, NEXT, tiles=5, resolution=672),
    "llava-next-13b": Setup(
        "llava-next-13b", "llava-hf/llava-v1.6-vicuna-13b-hf", NEXT, scale=13 / 7, layers=40, tiles=5, resolution=672
    ),
    "video": Setup("video", None, "LLaVA-Video-7B", layers=28, frames=64),
    "internvl3": Setup("internvl3-8b", "OpenGVLab/InternVL3-8B-hf", NEXT, layers=28, dual_encoder=None, resolution=896),
    "efficiency": Setup("efficiency", NEXT_7B, NEXT, tiles=5, resolution=672, tasks=("pope",)),
    "significance": Setup("significance", NEXT_7B, NEXT, tiles=5, resolution=672, tasks=("mme",)),
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

    def hours(self, gpu: str = "H200") -> float:
        """An estimate: hours on one GPU of `reproduction_time.GPUS`, eager transformers, one question at a time.

        >>> plan = make_plan("significance")
        >>> plan.hours("H200") == plan.hours("H100") < plan.hours("A100")
        True
        """
        seconds = 0.0
        for cell in self.cells:
            for task in self.tasks:
                tokens, pruned = self.benchmark(task).tokens, cell.method is not None
                seconds += self.questions(task) * answer_seconds(self.setup.timed_as, gpu, tokens, pruned=pruned)
        return self.setup.scale * seconds / 3600


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
