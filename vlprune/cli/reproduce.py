"""`vlprune reproduce`: the paper's tables on its own benchmarks, through lmms-eval."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlprune.cli.files import write_text
from vlprune.cli.options import AsJson, Device, split_list
from vlprune.cli.runs import Out, print_result
from vlprune.cli.terminal import Steps, console, print_text, show_steps
from vlprune.errors import MethodError, UnsupportedModel, UserError

if TYPE_CHECKING:
    from vlprune.evaluation.result import StudyResult
    from vlprune.evaluation.run_folder import RunFolder
    from vlprune.integrations.lmms_eval.table_run import TableRun, TaskScores
    from vlprune.studies.reproduction import Plan

REFUSED = "process-{}-refused.json"  # which methods one of several processes could not run, and why
TABLES = "llava-1.5-7b, llava-1.5-13b, llava-next-7b, llava-next-13b, video, internvl3, efficiency or significance"
ESTIMATE = (
    "Hours are estimated, not measured: eager transformers, one question at a time, from the milliseconds to the first "
    "token and for each further one that docs/performance.md has for an H200, for other GPUs by their data sheets. "
    "Left out: downloads, decoding of videos and scoring; --batch and several --gpus take less."
)


def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"One of {TABLES}.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, how many answers that is, and about how long.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="A folder or hub id in place of the table's own checkpoint.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option("--methods", metavar="A,B,...", help="Some rows of the table, or other methods beside them."),
    ] = None,
    keep: Annotated[str | None, typer.Option(help="Some of the table's budgets, or other numbers of tokens.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Some of the table's benchmarks, by lmms-eval's names.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Questions of each benchmark; all if not said.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Questions asked at once.")] = 8,
    dual_encoder: Annotated[
        str | None,
        typer.Option(
            help="A CLIP or SigLIP for relevance; auto: the one known to be the model's; none: the LLM's embeddings. "
            "As the table needs it, if not said."
        ),
    ] = None,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs", help="Run the LLM as CUDA graphs.")] = False,
    device: Device = "auto",
    gpus: Annotated[int, typer.Option(min=1, help="Processes that share the questions, each on a GPU of its own.")] = 1,
    task_folder: Annotated[
        Path | None, typer.Option(help="A folder of lmms-eval's task files, in place of those it brings.")
    ] = None,
    out: Out = None,
    share: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table of the paper on its own benchmarks, and print it beside the paper's numbers.

    Needs the extra lmms-eval, the checkpoint and the benchmarks (docs/benchmarks.md); begin with --dry-run. A run
    that was stopped goes on where it was when started again: every answer is kept as soon as it is given.
    """
    from vlprune.studies.reproduction import make_plan

    keeps = [_number(text) for text in split_list(keep or "")]
    wanted: dict[str, Any] = {"rows": split_list(names or ""), "keeps": keeps, "columns": split_list(tasks or "")}
    plan = make_plan(table, **wanted, limit=limit)
    if dry_run:
        print_plan(plan, as_json)
        return
    checkpoint = model or plan.setup.model
    if checkpoint is None:
        raise UserError(
            f"{table}: transformers has no checkpoint of {plan.paper.model} of its own: name one by --model."
        )
    encoder = dual_encoder or ("none" if model == "pocket" else plan.setup.dual_encoder or "none")
    settings: dict[str, Any] = {"model": checkpoint, "dual_encoder": encoder, "limit": limit}
    settings |= {"task_folder": None if task_folder is None else str(task_folder)}
    options: dict[str, Any] = {
        "limit": limit,
        "batch_size": batch,
        "cuda_graphs": cuda_graphs,
        "task_folder": task_folder,
    }
    options |= {"frames": plan.setup.frames or 16, "resolution": None if model == "pocket" else plan.setup.resolution}

    def load() -> Any:
        from vlprune.evaluation.load_model import load_model

        return load_model(checkpoint, None if encoder == "none" else encoder, device, video=plan.setup.frames > 0)

    with show_steps(f"loading {checkpoint} and the benchmarks", quiet=as_json) as steps:
        if share is not None:
            assert out is not None
            _answer_share(plan, load(), out, share, options)
            return
        asked = {"methods": names, "keep": keep, "tasks": tasks}
        run_folder = _open_folder(f"reproduce {table}", out, settings, asked, plan)
        run = _table_run(plan, load() if gpus == 1 else None, run_folder.path, steps, options)
        steps.begin("answering", len(plan.cells) * run.questions)
        if gpus == 1:
            refused = _answer_cells(plan, run)
        else:
            told = {**settings, **asked, "batch": batch, "device": device, "cuda_graphs": cuda_graphs or None}
            refused = _answer_in_processes(gpus, table, told, run_folder.path, lambda done: steps.reach(done, None))
        run_folder.save_refused([cell.name for cell in plan.cells], refused)
        steps.begin("scoring")
        result = make_result(plan, run, run_folder)
        if plan.name == "efficiency":
            _save(result, run_folder.path)  # measuring may run out of memory
            _add_costs(result, plan, run.loaded or load(), run_folder, cuda_graphs, steps)
        _save(result, run_folder.path)
    print_result(result, run_folder.path, as_json, "report.html")


def _number(text: str) -> float:
    """A budget of the table."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise UserError(f"--keep {text}: numbers of tokens as the table has them, with commas between.")
    return number


def print_plan(plan: Plan, as_json: bool) -> None:
    """Print what a plan runs: the checkpoint, methods, budgets and benchmarks, and how long that may take."""
    from vlprune.evaluation.result import ResultTable
    from vlprune.studies.reproduction_time import GPUS

    one = plan.setup
    questions = {task: plan.questions(task) for task in plan.tasks}
    hours = {gpu: plan.hours(gpu) for gpu in GPUS}
    if as_json:
        cells = [{"method": cell.row, "keep": cell.keep, "settings": repr(cell.method)} for cell in plan.cells]
        told = {"table": plan.name, "model": one.model, "cells": cells, "columns": list(plan.columns)}
        data = {task: plan.benchmark(task).data for task in plan.tasks}
        figures = {"data": data, "questions": questions, "answers": plan.answers, "hours": hours}
        print(json.dumps({**told, **figures}, indent=1))
        return
    shown = f", images at {one.resolution} px" if one.resolution else f", {one.frames} frames" if one.frames else ""
    print_text(f"{plan.name}: {plan.paper.title} ({plan.paper.label})")
    print_text(f"model: {one.model or plan.paper.model + ', of which --model must name a checkpoint'}{shown}")
    budgets: dict[str, list[str]] = {}
    for cell in plan.cells:
        budgets.setdefault(cell.row, []).append(f"{cell.keep:g}")
    rows = [[row, ", ".join(keeps)] for row, keeps in budgets.items()]
    console().print(ResultTable("Methods", ["method", plan.paper.budget], rows).to_table())
    rows = [_benchmark_line(plan, task, count) for task, count in questions.items()]
    console().print(ResultTable("Benchmarks", ["task", "in the paper", "questions", "dataset"], rows).to_table())
    if any(plan.benchmark(task).judged for task in questions):
        print_text("*: scored by a GPT judge, which needs OPENAI_API_KEY.")
    if plan.name == "efficiency":
        print_text("The costs are measured too: FLOPs, prefill, decoding, KV cache, memory.")
    print_text(f"{len(plan.cells)} methods and budgets, {plan.answers:,} answers.")
    about = ", ".join(f"{count:,.1f} on an {gpu}" for gpu, count in hours.items())
    print_text(f"Estimated hours: {about}.")
    print_text(ESTIMATE)


def _benchmark_line(plan: Plan, task: str, count: int) -> list[str]:
    """What a plan says of a benchmark: its task, the paper's name and split, its questions and data."""
    found = plan.benchmark(task)
    name = plan.paper.columns.get(task, task) + (f" ({found.paper_split})" if found.paper_split else "")
    return [task + ("*" if found.judged else ""), name, f"{count:,}", found.data]


def _open_folder(
    command: str, out: Path | None, settings: Mapping[str, Any], asked: Mapping[str, Any], plan: Plan
) -> RunFolder:
    from vlprune.evaluation.run_folder import RunFolder, default_folder

    folder = RunFolder(out or default_folder(command, settings), command, settings, asked)
    folder.save_methods({cell.name: cell.method for cell in plan.cells})
    return folder


def _table_run(plan: Plan, loaded: Any, folder: Path, steps: Steps | None, options: Mapping[str, Any]) -> TableRun:
    from vlprune.integrations.lmms_eval.table_run import TableRun

    shown: dict[str, Any] = {} if steps is None else {"tick": steps.advance}
    return TableRun(loaded, folder, plan.tasks, **options, **shown)


def _answer_cells(plan: Plan, run: TableRun) -> dict[str, str]:
    """Ask every method; returns, by cell, why the model cannot run some of them."""
    refused = {}
    for cell in plan.cells:
        try:
            run.answer(cell.name, cell.method)
        except (ValueError, UnsupportedModel, MethodError) as error:
            if cell.method is None:
                raise UserError(f"{cell.name}: {error}") from error
            refused[cell.name] = str(error)
    return refused


def _answer_share(plan: Plan, loaded: Any, folder: Path, share: str, options: Mapping[str, Any]) -> None:
    """Answer the questions of one of several processes."""
    first, _, count = share.partition("/")
    run = _table_run(plan, loaded, folder, None, {**options, "share": (int(first), int(count))})
    write_text(folder / REFUSED.format(first), json.dumps(_answer_cells(plan, run)))
    for cell, skipped in run.skipped.items():
        for one in skipped:
            print(f"vlprune: {cell}, {one.key} could not be asked: {one.reason}", flush=True)


def _answer_in_processes(
    count: int, table: str, told: Mapping[str, Any], folder: Path, reach: Callable[[int], None]
) -> dict[str, str]:
    """Start a process for each GPU that answers its share, and wait; `reach` is told how many answers there are.

    `told` are the options of the command, None where one was not said. Returns what `_answer_cells` does in each.
    """
    import subprocess
    import time

    words = [sys.executable, "-m", "vlprune", "reproduce", table, "--out", str(folder)]
    for name, value in told.items():
        option = "--" + name.replace("_", "-")
        words += [] if value is None else [option] if value is True else [option, str(value)]
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    started, logs = [], [folder / f"process-{i}.log" for i in range(count)]
    for i, log in enumerate(logs):
        given = {**os.environ, "CUDA_VISIBLE_DEVICES": devices[i] if len(devices) >= count > 1 else str(i)}
        with log.open("w") as file:
            started.append(subprocess.Popen([*words, "--share", f"{i}/{count}"], env=given, stdout=file, stderr=file))
    try:
        while any(one.poll() is None for one in started):
            time.sleep(1)
            reach(sum(_lines(file) for file in (folder / "answers").glob("*.jsonl")))
    finally:
        for one in started:
            one.terminate()
    for i, one in enumerate(started):
        if one.returncode != 0:
            said = logs[i].read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(f"--gpus {count}: process {i} ended with {one.returncode}: {said[-1]}")
    first, *others = [json.loads((folder / REFUSED.format(i)).read_text(encoding="utf-8")) for i in range(count)]
    # what one process alone could not ask is missing from the scores, and told there
    return {cell: reason for cell, reason in first.items() if all(cell in one for one in others)}


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def make_result(plan: Plan, run: TableRun, run_folder: RunFolder) -> StudyResult:
    """Score all answers, and set them beside the paper's numbers."""
    from vlprune.evaluation.result import ResultTable, StudyResult
    from vlprune.studies.reproduction_table import beside_paper_table, column_score, paired_table

    unscored = [task for task in plan.tasks if plan.benchmark(task).judged and not os.environ.get("OPENAI_API_KEY")]
    scored: dict[str, dict[str, TaskScores]] = {
        cell.name: run.score(cell.name, unscored) for cell in plan.cells if cell.name not in run_folder.refused
    }
    scores = {
        cell: {
            column: column_score(plan, column, one.metrics, one.samples)
            for column in plan.columns
            if (one := found.get(plan.benchmark(column).part_of or column)) is not None
        }
        for cell, found in scored.items()
    }
    tables = [beside_paper_table(plan, scores)]
    if plan.name == "significance":
        tables.append(paired_table(plan, {cell: found["mme"].samples for cell, found in scored.items()}))
    missing = [
        [name, str(len(found)), f"{found[0].key}: {found[0].reason}"] for name, found in run.skipped.items() if found
    ]
    if missing:
        note = "They count as answered by nothing; started again, the run tries them again."
        tables.append(ResultTable("Could not be asked", ["method", "questions", "the first"], missing, note))
    if unscored:
        rows = [[task, "set OPENAI_API_KEY for its judge, and start again"] for task in unscored]
        tables.append(ResultTable("Answered, not scored", ["task", "what it needs"], rows))
    if run_folder.refused:
        tables.append(
            ResultTable("Could not run", ["method", "why"], [list(one) for one in run_folder.refused.items()])
        )
    data = {
        "scores": {cell: {name: one._asdict() for name, one in found.items()} for cell, found in scores.items()},
        "metrics": {cell: {name: dict(one.metrics) for name, one in found.items()} for cell, found in scored.items()},
        "skipped": {name: len(found) for name, found in run.skipped.items()},
    }
    notice = f"The first {plan.limit} questions of each benchmark." if plan.limit is not None else ""
    return StudyResult(f"The paper's table {plan.name}", tables, data=data, notice=notice)


def _add_costs(
    result: StudyResult, plan: Plan, loaded: Any, run_folder: RunFolder, cuda_graphs: bool, steps: Steps
) -> None:
    """Measure what the efficiency table's methods cost, and add that to the result."""
    from vlprune.studies.reproduction_costs import costs_table, count_calls, measure_costs

    refused = run_folder.refused
    f1 = {cell: found["pope"]["value"] for cell, found in result.data["scores"].items()}
    steps.begin("measuring costs", total=count_calls(plan, refused))
    costs = measure_costs(plan, loaded, f1, refused=refused, cuda_graphs=cuda_graphs, tick=steps.advance)
    result.tables.insert(1, costs_table(costs))
    result.data["costs"] = costs.to_json()


def _save(result: StudyResult, folder: Path) -> None:
    """Save the result as Markdown, JSON and HTML."""
    from vlprune.evaluation.report import write_report

    result.save(folder)
    write_report([folder], folder / "report.html")
