"""Ask many questions by many methods: each image is encoded once, prompts of one shape are asked together."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlprune.errors import UnsupportedModel, UserError
from vlprune.evaluation import one_question as asking
from vlprune.evaluation.load_model import Loaded
from vlprune.evaluation.questions import Item, right

if TYPE_CHECKING:
    import torch

    from vlprune.evaluation.prefix_cache import Memory
    from vlprune.evaluation.run_folder import Run
    from vlprune.methods import Method
    from vlprune.models.base import Family
    from vlprune.record import Record

WHOLE = "all tokens"
BLOCK = 8  # batches whose images' features are held at once

Line = dict[str, Any]
Note = Callable[[Item, "Record"], dict[str, Any]]


@dataclass(frozen=True)
class Answered:
    """What one method answered to the questions of one batch; `reason` says why it could not, where it could not."""

    method: str
    items: Sequence[Item]
    texts: Sequence[str] = ()
    records: Sequence[Sequence[Record]] = ()
    reason: str | None = None


def answers(
    loaded: Loaded,
    items: Sequence[Item],
    methods: Mapping[str, Method],
    *,
    batch: int = 32,
    seed: int = 0,
    longest: int = 1,
    skip: Callable[[str, Sequence[Item]], bool] = lambda name, items: False,
    positions: str | None = None,
) -> Iterator[Answered]:
    """Every method's answers to every question, batch by batch, through `attach` and `generate` as a user would.

    A batch holds prompts whose tensors have equal shapes, so there is no padding. The vision tower sees each image
    once for all methods, the LLM once for all questions that its tokens do not depend on. `skip(name, items)` says
    what need not be asked. A method that the model cannot run says so in its first batch, and is left out from there
    on.
    """
    import torch

    from vlprune.evaluation.compare import _loaded_once
    from vlprune.evaluation.prefix_cache import Memory, memory_for
    from vlprune.models.base import family_of
    from vlprune.pruning.feature_cache import FeatureCache
    from vlprune.pruning.probe import encode_images

    if isinstance(loaded.clip, str):
        loaded = replace(loaded, clip=_loaded_once(loaded))
    try:
        family = family_of(loaded.model)
    except UnsupportedModel as error:
        raise UserError(f"--model {loaded.name}: {error}") from error
    cache, left = FeatureCache(float("inf"), fixed_pixels=True), dict(methods)
    attention = any(getattr(method, "needs_attention", False) for method in methods.values())

    def known(some: Sequence[Item]) -> bool:
        return all(skip(name, some) for name in left)

    for block in blocks(loaded, items, batch, known):
        for asked, inputs in block:
            if not known(asked):
                ids, pixels = _distinct(loaded.model, family, asked, inputs)
                with torch.no_grad():
                    encode_images(loaded.model, family, ids, pixels, cache, attention)
        everything = Memory()
        for name, method in list(left.items()):
            memory = memory_for(method, everything)
            for asked, inputs in block:
                if skip(name, asked):
                    continue
                answered = _ask(loaded, name, method, asked, inputs, cache, memory, seed, longest, positions)
                if answered.reason is not None:
                    del left[name]
                yield answered
                if name not in left:
                    break
        cache.clear()
        block.clear()


def _distinct(model: Any, family: Family, items: Sequence[Item], inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The ids and pixels of a batch without the rows that show an image again, where rows can be taken out."""
    from vlprune.pruning.probe import present_streams

    pixels = {name: value for name, value in inputs.items() if name in family.vision_inputs}
    if not all(family.encodes_independently(stream, pixels) for stream in present_streams(model, family, pixels)):
        return inputs["input_ids"], pixels
    rows = list({item.group: row for row, item in enumerate(items)}.values())
    return inputs["input_ids"][rows], {name: value[rows] for name, value in pixels.items()}


def blocks(
    loaded: Loaded, items: Sequence[Item], size: int, skip: Callable[[Sequence[Item]], bool]
) -> Iterator[list[tuple[list[Item], dict[str, torch.Tensor]]]]:
    """Batches of at most `size` questions with their inputs, those of every `BLOCK * size` questions together."""
    import torch

    for start in range(0, len(items), BLOCK * size):
        block = items[start : start + BLOCK * size]
        if skip(block):
            continue
        images = {item.group: item for item in block}
        with ThreadPoolExecutor() as pool:
            pictures = dict(zip(images, pool.map(Item.image, images.values())))
        alike: dict[Any, list[tuple[Item, dict[str, Any]]]] = {}
        for item in block:
            told = getattr(loaded.processor, "chat_template", None) or item is items[0]  # a notice once, not each time
            with nullcontext() if told else redirect_stderr(io.StringIO()):
                inputs = asking.prepare(loaded, pictures[item.group], item.text)
            shapes = tuple((name, tuple(value.shape)) for name, value in sorted(inputs.items()))
            alike.setdefault((pictures[item.group].size, shapes), []).append((item, inputs))
        found = []
        for rows in alike.values():
            while rows:
                some, rows[:size] = rows[:size], []
                joined = {name: torch.cat([inputs[name] for _, inputs in some]) for name in some[0][1]}
                found.append(([item for item, _ in some], joined))
        yield found


def _ask(
    loaded: Loaded,
    name: str,
    method: Method,
    items: Sequence[Item],
    inputs: dict[str, Any],
    cache: Any,
    memory: Memory | None,
    seed: int,
    longest: int,
    positions: str | None,
) -> Answered:
    from vlprune.evaluation.prefix_cache import remembering
    from vlprune.evaluation.reference_methods import for_questions
    from vlprune.pruner import attach

    model, processor = loaded.model, loaded.processor
    try:
        texts = [item.text for item in items]
        chosen = for_questions(method, items, seed)
        pruner = attach(
            model,
            chosen,
            processor=processor,
            query=texts,
            positions=positions,
            dual_encoder=loaded.clip,
            feature_cache=cache,
        )
        memory = memory if chosen is method else None  # else it chooses for each question
        try:
            with remembering(pruner, memory, [item.group for item in items], inputs["input_ids"]):
                out = model.generate(**inputs, max_new_tokens=longest, do_sample=False)
        finally:
            pruner.detach()
    except (ValueError, UnsupportedModel) as error:
        return Answered(name, items, reason=str(error))
    said = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    records: list[list[Record]] = [[] for _ in items]
    for record in pruner.records:
        records[record.row].append(record)
    return Answered(name, items, [text.strip() for text in said], records)


@dataclass
class Bench:
    """A model, the questions to ask it, and the run that keeps the answers.

    `tick(name, count)` is called as questions are answered; `expect(count)` says how many more there will be.
    """

    loaded: Loaded
    items: list[Item]
    run: Run
    batch: int = 32
    seed: int = 0
    longest: int = 1
    match: str = "exact"
    small: bool = False
    keep: tuple[int | float, ...] = ()
    tick: Callable[[str, int], None] = field(default=lambda name, count: None)
    expect: Callable[[int], None] = field(default=lambda count: None)

    @property
    def drawn(self) -> bool:
        """Whether the images are scenes of the pocket world, of which everything is known."""
        return all(item.scene is not None for item in self.items)

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(item.kind for item in self.items))

    def ask(
        self,
        methods: Mapping[str, Method],
        note: Note | None = None,
        items: Sequence[Item] | None = None,
        lenient: bool = False,
        positions: str | None = None,
    ) -> dict[str, list[Line]]:
        """Each method's answers, a line per question in the questions' order; what the run has is not asked again.

        A line has the question's number `q`, the `answer`, whether it is `right`, the visual tokens that entered the
        LLM and that a layer saw on average, and what `note(item, record)` adds. A method that cannot run is a
        `UserError`; if `lenient`, it is left out, and the run's `refused` says why.
        """
        items = self.items if items is None else items
        self.run.note_methods(methods)
        known = {name: {line["q"]: line for line in self.run.lines(name)} for name in methods}
        missing = sum(item.number not in known[name] for name in methods for item in items)
        self.expect(missing)
        if missing:
            self.run.note_device(self.loaded.model.device)

        def skip(name: str, some: Sequence[Item]) -> bool:
            return all(item.number in known[name] for item in some)

        found = answers(
            self.loaded,
            items,
            methods,
            batch=self.batch,
            seed=self.seed,
            longest=self.longest,
            skip=skip,
            positions=positions,
        )
        refused: dict[str, str] = {}
        for answered in found:
            name = answered.method
            if answered.reason is not None:
                if known[name] or not lenient:
                    raise UserError(f"{name}: {answered.reason}")
                refused[name] = answered.reason
                self.expect(-sum(item.number not in known[name] for item in items))
                continue
            lines = []
            for item, text, records in zip(answered.items, answered.texts, answered.records):
                if item.number not in known[name]:
                    lines.append(self._line(item, text, records, note))
                    known[name][item.number] = lines[-1]
            self.run.append(name, lines)
            self.tick(name, len(lines))
        self.run.note_refused(methods, refused)
        return {name: [known[name][item.number] for item in items] for name in methods if name not in refused}

    def _line(self, item: Item, text: str, records: Sequence[Record], note: Note | None) -> Line:
        entering, average = asking.accounted(records)
        line = {"q": item.number, "answer": text, "right": right(text, item.answers, self.match)}
        line |= {"entering": entering, "average": round(average, 2)}
        return line | (note(item, asking.together(records)) if note is not None else {})


def share(lines: Sequence[Line]) -> float:
    """The share of right answers."""
    return sum(line["right"] for line in lines) / len(lines)
