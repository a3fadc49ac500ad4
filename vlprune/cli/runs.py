"""What `vlprune eval` and `vlprune study` share: options, the run's folder and its questions, and the result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlprune.cli.options import split_list
from vlprune.cli.terminal import Steps, console
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model

if TYPE_CHECKING:
    from vlprune.evaluation.answers import Evaluation
    from vlprune.evaluation.coverage import CoverageRun
    from vlprune.evaluation.questions import ImageQuestion
    from vlprune.evaluation.result import StudyResult
    from vlprune.methods import Method

SPLITS = ("validation", "test")

Split = Annotated[
    str, typer.Option(help="Scenes of the pocket world, or captions: validation to choose by, test to report on.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        help='In place of drawn scenes: a JSONL file of {"image" or "video", "question", "answer"}, paths relative to '
        "it; an annotation file of POPE, GQA, TextVQA, VQAv2, VizWiz, ScienceQA or ChartQA, or MME's folder "
        "(docs/benchmarks.md); a list of captions (Flickr8k.token.txt), its splits and photographs beside it; a folder "
        "of images for studies that need no answers."
    ),
]
Match = Annotated[
    str, typer.Option(help="With --data, an answer is right if it is the true one (exact) or has it in it (contains).")
]
Seed = Annotated[int, typer.Option(min=0, help="For what is drawn at random.")]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Questions asked at once; if not said 32, 256 of the pocket and photo models on a GPU, 1 about videos.",
    ),
]
Frames = Annotated[
    int | None, typer.Option("--frames", min=1, help="Frames to show of each video of --data; 16 if not said.")
]
Resolution = Annotated[
    int | None,
    typer.Option(
        "--resolution",
        min=1,
        help="Resize every image to a square of so many pixels, as the paper does for LLaVA-NeXT (672) and InternVL3 "
        "(896); for models that see images at their own size or in tiles.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The run's folder; what it has already is not done again. If not said, one under runs/ named after the "
        "command, with a number where that holds a run with other settings."
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; `questions` are drawn ones of each kind, where there is no `data`."""

    model: str
    data: Path | None
    split: str
    questions: int
    match: str
    seed: int
    dual_encoder: str | None
    max_new_tokens: int
    device: str
    batch: int | None
    out: Path | None
    frames: int | None = None
    resolution: int | None = None

    def check(self) -> None:
        """Refuse what is none of the choices, and a model of another world without questions for it."""
        from vlprune.evaluation.questions import MATCH_RULES

        if self.split not in SPLITS:
            raise UserError(f"--split {self.split}: choose from {', '.join(SPLITS)}.")
        if self.match not in MATCH_RULES:
            raise UserError(f"--match {self.match}: choose from {', '.join(MATCH_RULES)}.")
        if self.data is None and self.model == "photo":
            raise UserError("--model photo: say --data with a list of captions, or with questions of a file.")
        if self.data is None and self.model != "pocket":
            raise UserError(
                f"--model {self.model} knows nothing of the pocket world: say --data with questions for it."
            )

    def settings(self) -> dict[str, Any]:
        """The options that answers depend on, as the run's folder keeps them."""
        settings: dict[str, Any] = {"model": self.model, "seed": self.seed, "dual_encoder": self.dual_encoder}
        settings |= {} if self.frames is None else {"frames": self.frames}
        settings |= {} if self.resolution is None else {"resolution": self.resolution}
        if self.data is None:
            return settings | {"split": self.split, "questions": self.questions}
        data = {"data": str(self.data), "digest": _digest(self.data)}
        if self.has_captions:
            return settings | data | {"split": self.split, "questions": self.questions}
        return settings | data | {"match": self.match, "max_new_tokens": self.max_new_tokens}

    @property
    def has_captions(self) -> bool:
        """Whether the questions are made of captions."""
        from vlprune.evaluation.captioned_photos import is_caption_list

        return self.data is not None and is_caption_list(self.data)

    def read_questions(self, need_answers: bool, need_boxes: bool) -> Sequence[ImageQuestion]:
        """The questions of the file or folder, or drawn ones; refuses options that do not go with them."""
        from vlprune.evaluation.questions import DEFAULT_FRAMES, pocket_questions, read_questions

        found: Sequence[ImageQuestion]
        if self.data is None:
            found = pocket_questions(self.split, self.questions)
        elif self.has_captions:
            from vlprune.evaluation.captioned_photos import photo_questions
            from vlprune.pocket.photo_scenes import SIZE

            if self.resolution is not None:
                raise UserError(f"--resolution {self.resolution}: pictures made of captions have {SIZE} pixels a side.")
            found = [q for q in photo_questions(self.data, self.split, self.questions) if q.boxes or not need_boxes]
        else:
            from vlprune.evaluation.benchmarks import read_benchmark

            options: dict[str, Any] = {"need_boxes": need_boxes, "frames": self.frames or DEFAULT_FRAMES}
            found = read_benchmark(self.data) or read_questions(self.data, need_answers, **options)
        videos = any(question.frames for question in found)
        if self.frames is not None and not videos:
            raise UserError(f"--frames {self.frames}: it is for videos, and there is none to ask about.")
        if self.resolution is not None and videos:
            raise UserError(f"--resolution {self.resolution}: it is for images, and {self.data} has videos.")
        return [replace(question, resolution=self.resolution) for question in found]


def _digest(path: Path) -> str:
    """A short name for what a file holds, or for the names of a folder's files."""
    if path.is_file():
        return _digest_text([path.read_bytes().decode("utf-8", "surrogateescape")])
    return _digest_text(sorted(p.name for p in path.glob("*")))


def _digest_text(lines: list[str]) -> str:
    """A short name for some lines of text."""
    import hashlib

    return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def open_evaluation(
    command: str,
    options: RunOptions,
    steps: Steps,
    *,
    need_answers: bool = True,
    need_boxes: bool = False,
    keep: tuple[int | float, ...] = (),
    small: bool | None = None,
    asked: Mapping[str, Any] | None = None,
    methods: Mapping[str, Mapping[str, Method]] | None = None,
) -> Evaluation:
    """The model, questions and run folder of a command; `steps` show how far it has come.

    `keep`, `small` and `methods` are a study's; `asked` are options that may change when the run goes on.
    """
    from vlprune.evaluation.resolution import check_resolution
    from vlprune.evaluation.run_folder import RunFolder, default_folder

    options.check()
    questions = options.read_questions(need_answers, need_boxes)
    videos = any(question.frames for question in questions)
    settings = options.settings() | ({"keep": list(keep)} if keep else {}) | ({} if small is None else {"small": small})
    path = options.out or default_folder(command, settings)
    known = RunFolder(path, command, settings, asked) if path.exists() else None  # refused before the model is loaded
    loaded = load_model(options.model, options.dual_encoder, options.device, video=videos)
    if options.resolution is not None:
        check_resolution(loaded, options.resolution)
    run_folder = known or RunFolder(path, command, settings, asked)
    drawn = options.data is None or options.has_captions
    small_model = options.model in ("pocket", "photo")
    usual_batch = 1 if videos else 256 if small_model and loaded.model.device.type == "cuda" else 32

    from vlprune.evaluation.answers import Evaluation
    from vlprune.evaluation.questions import longest_answer

    steps.begin(command)
    return Evaluation(
        loaded,
        list(questions),
        run_folder,
        options.batch or usual_batch,
        options.seed,
        max_new_tokens=longest_answer(loaded.processor, questions) if drawn else options.max_new_tokens,
        match="exact" if drawn else options.match,
        small=bool(small),
        keep=keep,
        methods=methods or {},
        tick=steps.advance,
        expect=steps.expect,
    )


@dataclass(frozen=True)
class PhotographOptions:
    """The options of a run that looks at photographs with a vision tower; `count` are drawn scenes, without `data`."""

    tower: str
    pixels: int | None
    data: Path | None
    split: str
    count: int
    seed: int
    device: str
    batch: int | None
    out: Path | None


def open_photographs(
    command: str,
    options: PhotographOptions,
    steps: Steps,
    *,
    keep: tuple[int | float, ...],
    small: bool,
    methods: Mapping[str, Mapping[str, Method]] | None = None,
) -> CoverageRun:
    """The tower, photographs and run folder of a command; a small run takes the first few photographs."""
    from vlprune.evaluation.coverage import CoverageRun
    from vlprune.evaluation.photographs import drawn_photographs, read_photographs
    from vlprune.evaluation.run_folder import RunFolder, default_folder
    from vlprune.evaluation.vision_tower import load_tower

    if options.split not in SPLITS:
        raise UserError(f"--split {options.split}: choose from {', '.join(SPLITS)}.")
    settings: dict[str, Any] = {"tower": options.tower, "pixels": options.pixels, "seed": options.seed}
    if options.data is None:
        photographs = drawn_photographs(options.split, options.count)
        settings |= {"split": options.split, "questions": options.count}
    else:
        photographs = read_photographs(options.data)[: options.count if small else None]
        settings |= {"data": str(options.data), "digest": _digest_text([repr(one) for one in photographs])}
    settings |= {"keep": list(keep), "small": small, **({"methods": list(methods)} if methods else {})}
    path = options.out or default_folder(command, settings)
    run_folder = RunFolder(path, command, settings) if path.exists() else None  # refused before the tower is loaded
    tower = load_tower(options.tower, options.pixels, options.device)
    run_folder = run_folder or RunFolder(path, command, settings)
    steps.begin(command)
    more: dict[str, Any] = {"seed": options.seed, "tick": steps.advance, "expect": steps.expect}
    return CoverageRun(tower, photographs, run_folder, keep, options.batch or 8, methods or {}, **more)


def parse_budgets(keep: str) -> list[str]:
    """The budgets between commas, each once."""
    budgets = split_list(keep)
    if not budgets:
        raise UserError("--keep is empty: name budgets, with commas between.")
    return list(dict.fromkeys(budgets))


def print_result(result: StudyResult, folder: Path, as_json: bool, beside: str = "") -> None:
    """Print a result that the folder holds, and its files: result.md, result.json, and its figures or `beside`."""
    if as_json:
        print(json.dumps(json.loads((folder / "result.json").read_text(encoding="utf-8")), indent=1))
        return
    if result.notice:
        console().print(result.notice, style="bold", highlight=False)
    for table in result.tables:
        console().print(table.to_table())
    beside = beside or ", ".join(f"{name}.png" for name in result.figures)
    print(f"wrote {folder}/result.md, result.json and {beside}")
