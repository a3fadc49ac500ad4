"""Run the tasks of one of the paper's tables through lmms-eval: answers go to a folder, scores are lmms-eval's own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vlprune.errors import UserError, describe_error
from vlprune.evaluation.load_model import LoadedModel
from vlprune.integrations.lmms_eval.answer_file import AnswerFile
from vlprune.integrations.lmms_eval.answerer import Answerer
from vlprune.integrations.lmms_eval.answering import Answering, Skipped
from vlprune.integrations.lmms_eval.samples import Request
from vlprune.methods import Method


@dataclass(frozen=True)
class TaskScores:
    """What lmms-eval says of one task: its `metrics`, and the `samples` it logs, one per document."""

    metrics: Mapping[str, float]
    samples: Sequence[Mapping[str, Any]]


@dataclass
class TableRun:
    """The tasks of a table for one model; without one (`loaded=None`) answers can only be scored.

    `folder` is where answers are kept, and where tasks write their submission files; `task_folder` has descriptions of
    tasks in place of lmms-eval's own. `share` is (i, n) for one of n processes. `tick(what, count)` is called as
    questions are answered. `skipped` has, by cell, what could not be asked.
    """

    loaded: LoadedModel | None
    folder: Path
    task_names: Sequence[str]
    limit: int | None = None
    batch_size: int = 8
    frames: int = 16
    resolution: int | None = None
    cuda_graphs: bool | str = False
    task_folder: Path | None = None
    share: tuple[int, int] = (0, 1)
    tick: Callable[[str, int], None] = lambda what, count: None
    skipped: dict[str, list[Skipped]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tasks = load_tasks(self.task_names, self.task_folder)
        self._requests: dict[str, list[Request]] = {}
        for name, one in _leaves(self._tasks):
            one.build_all_requests(limit=self.limit, rank=0, world_size=1)
            self._requests[name] = [Request.of(instance, simple=False) for instance in one.instances]

    @property
    def questions(self) -> int:
        """How many questions of all tasks one method is asked, in all processes."""
        return sum(map(len, self._requests.values()))

    def answer(self, cell: str, method: Method | None) -> None:
        """Ask a method all questions of all tasks whose answers the folder does not have."""
        with self._answering(cell, method) as answering:
            for name, requests in self._requests.items():
                answering.tick = partial(self.tick, f"{cell}, {name}")
                answering.generate(requests)
            self.skipped[cell] = answering.skipped

    def score(self, cell: str, unscored: Collection[str] = ()) -> dict[str, TaskScores]:
        """The scores of a method whose answers are all there, by task but for the `unscored`; a group is one task."""
        from lmms_eval.evaluator import evaluate

        found = {}
        known = AnswerFile(self._file(cell)).known
        told = SimpleNamespace(
            process_with_media=False, output_path=self._scores_folder(cell, known), reasoning_tags=None
        )
        told_of = {one.key for one in self.skipped.setdefault(cell, [])}
        missing = {one.key for requests in self._requests.values() for one in requests} - {*known, *told_of}
        self.skipped[cell] += [
            Skipped(key, "another process could not ask it, and says why in its log") for key in missing
        ]
        for name, tasks in self._tasks.items():
            if name in unscored:
                continue
            model = _known_answers(known)
            model.task_dict.update({leaf: one.dataset for leaf, one in _leaves({name: tasks})})
            done = evaluate(lm=model, task_dict={name: tasks}, limit=self.limit, bootstrap_iters=0, cli_args=told)
            leaves = [leaf for leaf, _ in _leaves({name: tasks})]
            metrics = [_metrics(done["results"][leaf]) for leaf in leaves]
            means = {key: sum(one[key] for one in metrics) / len(metrics) for key in metrics[0]}
            found[name] = TaskScores(means, [sample for leaf in leaves for sample in done["samples"][leaf]])
        return found

    def _file(self, cell: str) -> Path:
        return self.folder / "answers" / cell.replace(" ", "_")

    def _scores_folder(self, cell: str, known: Mapping[str, Any]) -> str:
        """Where tasks write; some read there what a judge said before, so it belongs to these answers only."""
        said = json.dumps(sorted((key, line["answer"]) for key, line in known.items()))
        mark = hashlib.blake2b(said.encode(), digest_size=4).hexdigest()
        return str(self.folder / "scores" / f"{cell.replace(' ', '_')}-{mark}")

    @contextmanager
    def _answering(self, cell: str, method: Method | None) -> Iterator[Answering]:
        """The model with a method attached, and the file of its answers."""
        shown: dict[str, Any] = {"frames": self.frames, "resolution": self.resolution, "cuda_graphs": self.cuda_graphs}
        assert self.loaded is not None
        answerer = Answerer(self.loaded, method, **shown)
        datasets = {name: one.dataset for name, one in _leaves(self._tasks)}
        try:
            yield Answering(
                answerer, datasets, self.batch_size, AnswerFile(self._file(cell), self.share[0]), self.share
            )
        finally:
            answerer.close()


def load_tasks(names: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """The tasks of lmms-eval by name, with their data; a group is a dictionary of its own."""
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")  # lmms-eval's logger: else it tells of every file that it reads
    try:
        from lmms_eval.tasks import TaskManager, get_task_dict
    except ImportError as error:
        raise UserError(f"lmms-eval is not installed: pip install 'vlprune[lmms-eval]' ({error}).") from error
    own = {} if folder is None else {"include_path": str(folder), "include_defaults": False}
    manager = TaskManager(**own)
    missing = [name for name in names if name not in manager.all_tasks]
    if missing:
        where = f"{folder} has" if folder is not None else "lmms-eval has"
        raise UserError(f"--tasks {','.join(missing)}: {where} no such task.")
    tasks = {}
    for name in names:
        try:
            tasks[name] = get_task_dict([name], manager, "chat")
        except Exception as error:  # of the network, the hub, a parser or the task's own code, after several attempts
            cause = describe_error(error.__cause__ or error)
            raise UserError(f"--tasks {name}: its data cannot be loaded ({cause}).") from error
    found = {name: one[name] if list(one) == [name] else one for name, one in tasks.items()}
    for name, task in _leaves(found):
        if task.OUTPUT_TYPE != "generate_until":
            raise UserError(f"--tasks {name}: its output_type is {task.OUTPUT_TYPE}; a table needs generate_until.")
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=1234)
    return found


def _leaves(tasks: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The tasks of a dictionary and of the groups in it, with their names."""
    for name, one in tasks.items():
        if isinstance(one, Mapping):
            yield from _leaves(one)
        else:
            yield str(name), one


def _metrics(results: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among lmms-eval's results, by the metric's name alone."""
    numbers = {name.partition(",")[0]: value for name, value in results.items() if "_stderr" not in name}
    return {name: float(value) for name, value in numbers.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return not isinstance(value, (str, bool, list)) and hasattr(value, "__float__")


def _known_answers(known: Mapping[str, Mapping[str, Any]]) -> Any:
    """A model for lmms-eval that only says again what was answered; "" where nothing was."""
    from lmms_eval.api.model import lmms

    class KnownAnswers(lmms):
        is_simple = False

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            keys = [Request.of(instance, simple=False).key for instance in requests]
            return [known.get(key, {}).get("answer", "") for key in keys]

        # lmms-eval wants all three defined; `load_tasks` refuses tasks that would call these two
        def loglikelihood(self, requests: Sequence[Any]) -> Any:
            raise NotImplementedError

        def generate_until_multi_round(self, requests: Sequence[Any]) -> Any:
            raise NotImplementedError

    os.environ.setdefault("TQDM_DISABLE", "1")  # scoring takes no time that a bar would be for
    return KnownAnswers()
