"""What `vlprune eval` and `vlprune study` share: options, the run's folder and its questions, and the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlprune.cli.options import split_list
from vlprune.cli.terminal import Steps, console
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model

if TYPE_CHECKING:
    from vlprune.evaluation.answers import Evaluation
    from vlprune.evaluation.questions import ImageQuestion
    from vlprune.evaluation.result import StudyResult

SPLITS = ("validation", "test")

Split = Annotated[str, typer.Option(help="Scenes of the pocket world: validation to choose by, test to report on.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help='In place of drawn scenes: a JSONL file of {"image", "question", "answer"}, paths relative to it; '
        "a folder of images for studies that need no answers."
    ),
]
Match = Annotated[
    str, typer.Option(help="With --data, an answer is right if it is the true one (exact) or has it in it (contains).")
]
Seed = Annotated[int, typer.Option(min=0, help="For what is drawn at random.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Questions asked at once; 32, or 256 on a GPU, if not said.")]
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
    clip: str | None
    max_new_tokens: int
    device: str
    batch: int | None
    out: Path | None

    def check(self) -> None:
        """Refuse what is none of the choices, and a model of another world without questions for it."""
        from vlprune.evaluation.questions import MATCH_RULES

        if self.split not in SPLITS:
            raise UserError(f"--split {self.split}: choose from {', '.join(SPLITS)}.")
        if self.match not in MATCH_RULES:
            raise UserError(f"--match {self.match}: choose from {', '.join(MATCH_RULES)}.")
        if self.data is None and self.model != "pocket":
            raise UserError(
                f"--model {self.model} knows nothing of the pocket world: say --data with questions for it."
            )

    def settings(self) -> dict[str, Any]:
        """The options that answers depend on, as the run's folder keeps them."""
        settings: dict[str, Any] = {"model": self.model, "seed": self.seed, "clip": self.clip}
        if self.data is None:
            return settings | {"split": self.split, "questions": self.questions}
        data = {"data": str(self.data), "digest": _digest(self.data)}
        return settings | data | {"match": self.match, "max_new_tokens": self.max_new_tokens}

    def read_questions(self, need_answers: bool) -> list[ImageQuestion]:
        """The questions of the file or folder, or drawn ones."""
        from vlprune.evaluation.questions import pocket_questions, read_questions

        if self.data is None:
            return pocket_questions(self.split, self.questions)
        return read_questions(self.data, need_answers)


def _digest(path: Path) -> str:
    """A short name for what a file holds, or for the names of a folder's files."""
    import hashlib

    text = path.read_bytes() if path.is_file() else "\n".join(sorted(p.name for p in path.glob("*"))).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def open_evaluation(
    command: str,
    options: RunOptions,
    steps: Steps,
    *,
    need_answers: bool = True,
    keep: tuple[int | float, ...] = (),
    small: bool | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Evaluation:
    """The model, questions and run folder of a command; `steps` show how far it has come.

    `keep` and `small` are a study's; `asked` are options that may change when the run goes on.
    """
    from vlprune.evaluation.run_folder import RunFolder, default_folder

    options.check()
    questions = options.read_questions(need_answers)
    settings = options.settings() | ({"keep": list(keep)} if keep else {}) | ({} if small is None else {"small": small})
    path = options.out or default_folder(command, settings)
    known = RunFolder(path, command, settings, asked) if path.exists() else None  # refused before the model is loaded
    loaded = load_model(options.model, options.clip, options.device)
    run_folder = known or RunFolder(path, command, settings, asked)
    usual_batch = 256 if loaded.model.device.type == "cuda" and options.model == "pocket" else 32
    drawn = options.data is None

    from vlprune.evaluation.answers import Evaluation

    steps.begin(command)
    return Evaluation(
        loaded,
        questions,
        run_folder,
        options.batch or usual_batch,
        options.seed,
        max_new_tokens=1 if drawn else options.max_new_tokens,
        match="exact" if drawn else options.match,
        small=bool(small),
        keep=keep,
        tick=steps.advance,
        expect=steps.expect,
    )


def parse_budgets(keep: str) -> list[str]:
    """The budgets between commas, each once."""
    budgets = split_list(keep)
    if not budgets:
        raise UserError("--keep is empty: name budgets, with commas between.")
    return list(dict.fromkeys(budgets))


def write_result(result: StudyResult, folder: Path, as_json: bool) -> None:
    """Save a result in the run's folder, and print its tables, or all of it as JSON."""
    result.save(folder)
    if as_json:
        print(json.dumps(json.loads((folder / "result.json").read_text(encoding="utf-8")), indent=1))
        return
    if result.notice:
        console().print(result.notice, style="bold", highlight=False)
    for table in result.tables:
        for part in table.to_rich(console().width):
            console().print(part)
    print(f"wrote {folder}/result.md, result.json and {', '.join(f'{name}.png' for name in result.figures)}")
