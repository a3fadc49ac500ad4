"""Answer the requests of lmms-eval: those that are known are read, the others are asked in batches of like length."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from vlprune.errors import describe_error
from vlprune.integrations.lmms_eval.answer_file import AnswerFile
from vlprune.integrations.lmms_eval.answerer import Answerer
from vlprune.integrations.lmms_eval.samples import Request, Sample

BATCHES_PER_BLOCK = 16  # whose samples are sorted by length: near ones may share an image, whose features are cached
MANY_SKIPPED = 32  # samples in a row: then it is no fault of single samples, but of the disk, the GPU or the data


class Skipped(NamedTuple):
    """A sample that could not be asked, and why."""

    key: str
    reason: str


@dataclass
class Answering:
    """Answers requests with one model and method.

    `tasks` are the datasets of lmms-eval. What `file` holds is not asked again, and what is asked is added to it.
    `share` is (i, n) for a process that answers only every n-th request, from the i-th on: the others have the answer
    "". A sample that cannot be read or asked is `skipped`, whatever the error, and has the answer "" too; where nothing
    at all can be answered, or `MANY_SKIPPED` in a row cannot, the error is raised. `tick(count)` is called as requests
    are answered.
    """

    answerer: Answerer
    tasks: Mapping[str, Any]
    batch_size: int = 1
    file: AnswerFile | None = None
    share: tuple[int, int] = (0, 1)
    tick: Callable[[int], None] = lambda count: None
    skipped: list[Skipped] = field(default_factory=list)
    _failures: dict[str, int] = field(default_factory=dict)  # in a row, of the step "read" and of "ask"
    _error: Exception | None = None  # of the sample that was skipped last

    def generate(self, requests: Sequence[Request]) -> list[str]:
        """The answers, in the requests' order."""
        found = self._known(requests)
        for block in _blocks(self._own(requests, found), BATCHES_PER_BLOCK * self.batch_size):
            for batch in self._batches(block):
                found.update(self._answer(batch))
        self._raise_if_nothing(found)
        return [found.get(request.key, {}).get("answer", "") for request in requests]

    def loglikelihood(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether it is what greedy decoding says."""
        found = self._known(requests)
        for request in self._own(requests, found):
            self._guarded("ask", request, partial(self._weigh, request, found))
        self._raise_if_nothing(found)
        nothing = {"answer": (float("-inf"), False)}
        answers = [found.get(request.key, nothing)["answer"] for request in requests]
        return [(float(total), bool(greedy)) for total, greedy in answers]

    def _known(self, requests: Sequence[Request]) -> dict[str, dict[str, Any]]:
        known = {} if self.file is None else self.file.known
        found = {request.key: known[request.key] for request in requests if request.key in known}
        self.tick(len(found))
        return found

    def _own(self, requests: Sequence[Request], found: Mapping[str, Any]) -> list[Request]:
        """Those of the requests that are not known, each once, and that this process is to answer."""
        first, step = self.share
        mine = {request.key: request for request in requests[first::step] if request.key not in found}
        return list(mine.values())

    def _batches(self, block: Sequence[Request]) -> Iterator[list[tuple[Request, Sample]]]:
        """Samples of like length with the same options, which show equally many images and videos."""
        alike: dict[Any, list[tuple[Request, Sample]]] = {}

        def read(request: Request) -> None:
            sample = request.sample(self.tasks)
            options = json.dumps(dict(request.options), sort_keys=True, default=str)
            alike.setdefault((options, len(sample.images), len(sample.videos)), []).append((request, sample))

        for request in block:
            self._guarded("read", request, partial(read, request))
        for rows in alike.values():
            rows.sort(key=lambda row: -len(row[0].text))
            for start in range(0, len(rows), self.batch_size):
                yield rows[start : start + self.batch_size]

    def _answer(self, batch: Sequence[tuple[Request, Sample]]) -> dict[str, dict[str, Any]]:
        """Answer a batch; if that fails, one by one, so that one broken sample costs no other its answer."""
        found: dict[str, dict[str, Any]] = {}

        def ask(rows: Sequence[tuple[Request, Sample]]) -> None:
            answers = self.answerer.generate([sample for _, sample in rows], rows[0][0].options)
            lines = {request.key: {"key": request.key, **one} for (request, _), one in zip(rows, answers)}
            self._save(lines)
            found.update(lines)

        if len(batch) > 1:
            try:
                ask(batch)
                return found
            except Exception:  # too long for the memory together, or one is broken: it shows when they are asked alone
                pass
        for row in batch:
            self._guarded("ask", row[0], partial(ask, [row]))
        return found

    def _weigh(self, request: Request, found: dict[str, dict[str, Any]]) -> None:
        """Add the likelihood of a request's continuation to what was found."""
        sample, said = request.sample(self.tasks), request.continuation_of(self.tasks)
        line = {"key": request.key, "answer": list(self.answerer.loglikelihood(sample, said))}
        self._save({request.key: line})
        found[request.key] = line

    def _save(self, lines: Mapping[str, dict[str, Any]]) -> None:
        if self.file is not None:
            self.file.append(lines.values())
        self._failures["ask"] = 0
        self.tick(len(lines))

    def _guarded(self, step: str, request: Request, act: Callable[[], None]) -> None:
        """Do a step ("read" or "ask") of a request; if it fails, note why and go on."""
        try:
            act()
            self._failures[step] = 0
        except Exception as error:  # of PIL, PyAV, a processor or a model: what a broken file raises is not known
            self.skipped.append(Skipped(request.key, describe_error(error)))
            self._error = error
            self._failures[step] = self._failures.get(step, 0) + 1
            if self._failures[step] >= MANY_SKIPPED:
                raise

    def _raise_if_nothing(self, found: Mapping[str, Any]) -> None:
        """Raise the last error if not one request was answered: then it is no fault of single samples."""
        if self._error is not None and not found:
            raise self._error


def _blocks(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]
