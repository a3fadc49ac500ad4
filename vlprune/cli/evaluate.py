"""`vlprune eval`, `vlprune study` and `vlprune report`. Everything heavy loads inside the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlprune.budget import Budget
from vlprune.cli.app import (
    AsJson,
    ClipName,
    Device,
    Force,
    Longest,
    ModelName,
    _console,
    _keep,
    _method,
    _nearest,
    _progress,
    app,
    output_path,
)
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load
from vlprune.studies import STUDIES, get_study

if TYPE_CHECKING:
    from vlprune.evaluation.answers import Bench
    from vlprune.evaluation.result import Result
    from vlprune.methods import Method

BUDGETS = "192,128,64,32,16"
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


@app.command("eval")
def evaluate(
    model: ModelName = "pocket",
    names: Annotated[
        str, typer.Option("--methods", metavar="A,B,...", help="all, or some; settings go behind: script:tau=0.2:rho=1")
    ] = "all",
    keep: Annotated[str, typer.Option(help="Budgets: numbers of tokens, or ratios.")] = BUDGETS,
    split: Split = "test",
    questions: Annotated[int, typer.Option(min=1, help="Drawn questions of each kind.")] = 600,
    data: Data = None,
    match: Match = "exact",
    seed: Seed = 0,
    clip: ClipName = None,
    max_new_tokens: Longest = 16,
    device: Device = "auto",
    batch: Batch = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score methods at several budgets: how many questions are still answered right.

    Asks every question with all tokens and by every method at every budget, and the oracle, which knows where to look.
    A run that was stopped goes on where it was when started again.
    """
    methods = _methods(names, keep)
    if data is None and "oracle" not in methods and names == "all":
        from vlprune.evaluation.reference_methods import Oracle

        methods["oracle"] = {said: Oracle(keep=_keep(said)) for said in _budgets(keep)}
    asked = {"methods": names, "keep": keep}
    with _bench(
        "eval", out, model, data, split, questions, match, seed, clip, max_new_tokens, device, batch, asked=asked
    ) as bench:
        from vlprune.evaluation.accuracy import evaluate as score

        result = score(bench, methods)
    _finish(result, bench.run.folder, as_json)


@app.command()
def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(STUDIES)}.")],
    small: Annotated[bool, typer.Option("--small", help="A few questions only: well under a minute on a CPU.")] = False,
    model: ModelName = "pocket",
    keep: Annotated[str | None, typer.Option(help="Budgets in place of the study's own.")] = None,
    split: Split = "validation",
    questions: Annotated[
        int | None, typer.Option(min=1, help="Drawn questions of each kind, in place of the study's own number.")
    ] = None,
    data: Data = None,
    match: Match = "exact",
    seed: Seed = 0,
    clip: ClipName = None,
    max_new_tokens: Longest = 16,
    device: Device = "auto",
    batch: Batch = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a study of the paper: tables, figures and numbers, in a folder."""
    if name not in STUDIES:
        raise UserError(f"study {name}: no such study; {_nearest(name, list(STUDIES))}")
    chosen = get_study(name)
    if chosen.NEEDS == "scenes" and data is not None:
        raise UserError(f"study {name} needs to know where things are, so it goes with the pocket world and no --data.")
    count = questions or chosen.QUESTIONS[small]
    budgets = tuple(_fixed(said) for said in _budgets(keep)) if keep else chosen.KEEP
    with _bench(
        f"study {name}", out, model, data, split, count, match, seed, clip, max_new_tokens, device, batch,
        answers=chosen.NEEDS != "images", keep=budgets, small=small,
    ) as bench:  # fmt: skip
        result = chosen.study(bench)
    _finish(result, bench.run.folder, as_json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of eval and study.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
    force: Force = False,
) -> None:
    """Put the tables and figures of runs into one HTML file that needs nothing else."""
    from vlprune.evaluation.report import write_report
    from vlprune.evaluation.run_folder import files_of

    read = [path for folder in folders for path in files_of(folder)]
    write_report(folders, output_path(out, *read, force=force))
    print(f"wrote {out}")


def _budgets(keep: str) -> list[str]:
    found = [part.strip() for part in keep.split(",") if part.strip()]
    if not found:
        raise UserError("--keep is empty: name budgets, with commas between.")
    return list(dict.fromkeys(found))


def _fixed(said: str) -> int | float:
    keep = _keep(said)
    if isinstance(keep, Budget):
        raise UserError(
            f"--keep {said}: studies take numbers of tokens or ratios (study adaptive finds shares itself)."
        )
    return keep


def _methods(names: str, keep: str) -> dict[str, dict[str, Method]]:
    """ "script:tau=0.2,random" and "64,16" as methods by name and budget."""
    from vlprune.methods import list_methods

    wanted = (
        [*list_methods(), "script:fusion=supplement"]
        if names == "all"
        else [part.strip() for part in names.split(",") if part.strip()]
    )
    if not wanted:
        raise UserError("--methods is empty: name some, with commas between, or say all.")
    found: dict[str, dict[str, Method]] = {}
    for spec in wanted:
        name, *pairs = spec.split(":")
        if name == "oracle" and not pairs:
            from vlprune.evaluation.reference_methods import Oracle

            found[spec] = {said: Oracle(keep=_keep(said)) for said in _budgets(keep)}
        else:
            found[spec] = {said: _method(name, said, pairs) for said in _budgets(keep)}
    return found


@contextmanager
def _bench(
    command: str,
    out: Path | None,
    model: str,
    data: Path | None,
    split: str,
    questions: int,
    match: str,
    seed: int,
    clip: str | None,
    longest: int,
    device: str,
    batch: int | None,
    *,
    answers: bool = True,
    keep: tuple[int | float, ...] = (),
    small: bool = False,
    asked: dict[str, Any] | None = None,
) -> Iterator[Bench]:
    """What a command works with, under a bar that shows how far it has come."""
    from vlprune.evaluation.questions import MATCHES, file_items, pocket_items

    if split not in SPLITS:
        raise UserError(f"--split {split}: choose from {', '.join(SPLITS)}.")
    if match not in MATCHES:
        raise UserError(f"--match {match}: choose from {', '.join(MATCHES)}.")
    if data is None and model != "pocket":
        raise UserError(f"--model {model} knows nothing of the pocket world: say --data with questions for it.")
    settings: dict[str, Any] = {"model": model, "seed": seed, "clip": clip}
    if data is None:
        items, longest = pocket_items(split, questions), 1
        settings |= {"split": split, "questions": questions}
    else:
        items = file_items(data, answers)
        settings |= {"data": str(data), "digest": _digest(data), "match": match, "max_new_tokens": longest}
    if keep:
        settings |= {"keep": list(keep), "small": small}
    from vlprune.evaluation.run_folder import Run, default_folder

    folder = out or default_folder(command, settings)
    known = Run(folder, command, settings, asked) if folder.exists() else None  # refused before the model is loaded
    loaded = load(model, clip, device)
    run = known or Run(folder, command, settings, asked)
    cuda = loaded.model.device.type == "cuda"

    from vlprune.evaluation.answers import Bench

    with _progress() as progress:
        task = progress.add_task(command, total=0)

        def tick(name: str, count: int) -> None:
            progress.update(task, description=name, advance=count)

        def expect(count: int) -> None:
            progress.update(task, total=(progress.tasks[task].total or 0) + count)

        yield Bench(
            loaded, items, run, batch or (256 if cuda and model == "pocket" else 32), seed, longest,
            match if data else "exact", small, keep, tick, expect,
        )  # fmt: skip


def _digest(path: Path) -> str:
    """A short name for what a file holds, or for the names of a folder's files."""
    import hashlib

    text = path.read_bytes() if path.is_file() else "\n".join(sorted(p.name for p in path.glob("*"))).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _finish(result: Result, folder: Path, as_json: bool) -> None:
    result.save(folder)
    if as_json:
        print(json.dumps(json.loads((folder / "result.json").read_text(encoding="utf-8")), indent=1))
        return
    console = _console()
    for table in result.tables:
        console.print(table.rich())
    print(f"wrote {folder}/result.md, result.json and {', '.join(f'{name}.png' for name in result.figures)}")
