"""Ask many questions by many methods: each image is encoded once, prompts of one shape are asked together."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch

from vlprune.errors import UnsupportedModel, UserError
from vlprune.evaluation.load_model import LoadedModel, with_loaded_clip
from vlprune.evaluation.one_question import count_tokens, join_records, prepare_inputs
from vlprune.evaluation.prefix_cache import PrefixCache, prefix_cache_for, reuse_prefix
from vlprune.evaluation.questions import ImageQuestion, score_answer
from vlprune.evaluation.reference_methods import method_for_questions
from vlprune.evaluation.run_folder import RunFolder
from vlprune.evaluation.yes_no import yes_margins
from vlprune.measure.discrepancy import FirstLogits, next_token_kl
from vlprune.methods import Method
from vlprune.models import Family, family_of
from vlprune.pruner import attach
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.probe import encode_images, present_modalities
from vlprune.record import Record

BATCHES_PER_BLOCK = 8  # batches whose images' features are held at once

#: An answer as it stands in the run folder; see `Evaluation.ask`.
AnswerLine = dict[str, Any]
#: What questions of one batch must have in common beside the shapes of their prompts.
Alike = Callable[[ImageQuestion], Hashable]
#: What a study adds to the line of an answer, from the question and what was kept for it.
Details = Callable[[ImageQuestion, Record], dict[str, Any]]


@dataclass(frozen=True)
class Batch:
    """Questions whose inputs have equal shapes, and these inputs, joined."""

    questions: list[ImageQuestion]
    inputs: dict[str, torch.Tensor]


@dataclass(frozen=True)
class BatchAnswers:
    """What one method answered to the questions of one batch; where it cannot run, `reason` says why.

    If answers are compared with those of a reference, `logits` (B, V) are the first token's, and `kl` is each one's
    divergence from the reference's, by `next_token_kl`.
    """

    method: str
    questions: Sequence[ImageQuestion]
    texts: Sequence[str] = ()
    records: Sequence[Sequence[Record]] = ()
    reason: str | None = None
    logits: torch.Tensor | None = None
    kl: Sequence[float] | None = None


@dataclass(frozen=True)
class _GenerateOptions:
    """What is the same for all batches and methods."""

    features: FeatureCache
    seed: int
    max_new_tokens: int
    positions: str | None
    compare: bool


def generate_answers(
    loaded: LoadedModel,
    questions: Sequence[ImageQuestion],
    methods: Mapping[str, Method],
    *,
    batch: int = 32,
    seed: int = 0,
    max_new_tokens: int = 1,
    skip: Callable[[str, Sequence[ImageQuestion]], bool] = lambda name, questions: False,
    positions: str | None = None,
    reference: str | None = None,
    alike: Alike = lambda question: None,
) -> Iterator[BatchAnswers]:
    """Every method's answers to every question, batch by batch, through `attach` and `generate` as a user would.

    A batch holds prompts whose tensors have equal shapes, so there is no padding, and for which `alike(question)` is
    the same. The vision tower sees each image once for all methods, the LLM once for all questions that its tokens do
    not depend on. `skip(name, questions)` says what need not be asked. A method that the model cannot run says so in
    its first batch, and is left out from there on. `reference` names the first method if the others' outputs are to be
    compared with its; where its answers need not be asked but theirs do, it only computes its first token again.
    """
    loaded = with_loaded_clip(loaded)
    try:
        family = family_of(loaded.model)
    except UnsupportedModel as error:
        raise UserError(f"--model {loaded.name}: {error}") from error
    cache, compare = FeatureCache(float("inf"), fixed_pixels=True), reference is not None
    options = _GenerateOptions(cache, seed, max_new_tokens, positions, compare)
    attention = any(getattr(method, "needs_attention", False) for method in methods.values())
    left = dict(methods)

    def skipped_by_all(some: Sequence[ImageQuestion]) -> bool:
        return all(skip(name, some) for name in left)

    for block in _blocks(loaded, questions, batch, skipped_by_all, alike):
        for one in block:
            if not skipped_by_all(one.questions):
                _encode_batch(loaded.model, family, one, options.features, attention)
        all_tokens_prefixes = PrefixCache()
        full: dict[int, torch.Tensor] = {}  # the reference's first logits, by question
        for name, method in list(left.items()):
            prefixes = prefix_cache_for(method, all_tokens_prefixes)
            for one in block:
                known = skip(name, one.questions)
                if known and (name != reference or skipped_by_all(one.questions)):
                    continue
                asked = replace(options, max_new_tokens=1) if known else options  # then only its logits are needed
                answered = _compared(_answer_batch(loaded, name, method, one, asked, prefixes), full, name == reference)
                if answered.reason is not None:
                    del left[name]
                if not known or answered.reason is not None:
                    yield answered
                if name not in left:
                    break
        options.features.clear()
        block.clear()


def _blocks(
    loaded: LoadedModel,
    questions: Sequence[ImageQuestion],
    size: int,
    skip: Callable[[Sequence[ImageQuestion]], bool],
    same: Alike,
) -> Iterator[list[Batch]]:
    """Batches of at most `size` questions, those of every `BATCHES_PER_BLOCK * size` questions together.

    Videos are large: of these, one batch is held at a time.
    """
    block_size = size if any(question.frames for question in questions) else BATCHES_PER_BLOCK * size
    for start in range(0, len(questions), block_size):
        block = questions[start : start + block_size]
        if skip(block):
            continue
        by_image = {question.image_name: question for question in block}
        with ThreadPoolExecutor() as pool:
            images = dict(zip(by_image, pool.map(lambda question: question.shown(), by_image.values())))
        alike: dict[Any, list[tuple[ImageQuestion, dict[str, Any]]]] = {}
        for question in block:
            # a notice that there is no chat template is printed once, not each time
            told = getattr(loaded.processor, "chat_template", None) or question is questions[0]
            with nullcontext() if told else redirect_stderr(io.StringIO()):
                inputs = prepare_inputs(loaded, images[question.image_name], question.text)
            shapes = tuple((name, tuple(value.shape)) for name, value in sorted(inputs.items()))
            key = (images[question.image_name].size, shapes, same(question))
            alike.setdefault(key, []).append((question, inputs))
        batches = []
        for rows in alike.values():
            while rows:
                some, rows[:size] = rows[:size], []
                joined = {name: torch.cat([inputs[name] for _, inputs in some]) for name in some[0][1]}
                batches.append(Batch([question for question, _ in some], joined))
        yield batches


def _encode_batch(model: Any, family: Family, batch: Batch, features: FeatureCache, attention: bool) -> None:
    """Put the features of a batch's images into the cache; an image that several rows show is encoded once."""
    ids = batch.inputs["input_ids"]
    pixels = {name: value for name, value in batch.inputs.items() if name in family.vision_inputs}
    if all(family.encodes_independently(stream, pixels) for stream in present_modalities(model, family, pixels)):
        rows = list({question.image_name: row for row, question in enumerate(batch.questions)}.values())
        ids, pixels = ids[rows], {name: value[rows] for name, value in pixels.items()}
    with torch.no_grad():
        encode_images(model, family, ids, pixels, features, attention)


def _answer_batch(
    loaded: LoadedModel,
    name: str,
    method: Method,
    batch: Batch,
    options: _GenerateOptions,
    prefixes: PrefixCache | None,
) -> BatchAnswers:
    """One method's answers to one batch, or the reason why it cannot run."""
    model, processor, inputs = loaded.model, loaded.processor, batch.inputs
    try:
        chosen = method_for_questions(method, batch.questions, options.seed)
        pruner = attach(
            model,
            chosen,
            processor=processor,
            query=[question.query or question.text for question in batch.questions],
            positions=options.positions,
            dual_encoder=loaded.clip,
            feature_cache=options.features,
        )
        shared = prefixes if chosen is method else None  # else it chooses for each question
        try:
            images = [question.image_name for question in batch.questions]
            first = FirstLogits(model) if options.compare else nullcontext()
            with reuse_prefix(pruner, shared, images, inputs["input_ids"]), first:
                out = model.generate(**inputs, max_new_tokens=options.max_new_tokens, do_sample=False)
        finally:
            pruner.detach()
    except (ValueError, UnsupportedModel) as error:
        return BatchAnswers(name, batch.questions, reason=str(error))
    texts = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    records: list[list[Record]] = [[] for _ in batch.questions]
    for record in pruner.records:
        records[record.row].append(record)
    if not all(records):
        return BatchAnswers(name, batch.questions, reason=f"family {pruner.family.name!r} prunes no videos.")
    logits = first.logits if isinstance(first, FirstLogits) else None
    return BatchAnswers(name, batch.questions, [text.strip() for text in texts], records, logits=logits)


def _compared(answered: BatchAnswers, full: dict[int, torch.Tensor], is_reference: bool) -> BatchAnswers:
    """The answers with their divergence from the reference's, whose first logits are in `full`, or put there."""
    if answered.logits is None:
        return answered
    numbers = [question.number for question in answered.questions]
    if is_reference:
        full.update(zip(numbers, answered.logits))
    if any(number not in full for number in numbers):  # the reference could not run
        return answered
    kl = next_token_kl(torch.stack([full[number] for number in numbers]), answered.logits)
    return replace(answered, kl=kl.tolist())


@dataclass
class Evaluation:
    """A model, the questions to ask it, and the folder that keeps the answers.

    `keep` are the budgets of a study, `methods` (by name, then by budget) those that it is to compare in place of its
    own, and `small` asks it for less. `tick(name, count)` is called as questions are
    answered; `expect(count)` says how many more there will be.
    """

    loaded: LoadedModel
    questions: list[ImageQuestion]
    run_folder: RunFolder
    batch: int = 32
    seed: int = 0
    max_new_tokens: int = 1
    match: str = "exact"
    small: bool = False
    keep: tuple[int | float, ...] = ()
    methods: Mapping[str, Mapping[str, Method]] = field(default_factory=dict)
    tick: Callable[[str, int], None] = field(default=lambda name, count: None)
    expect: Callable[[int], None] = field(default=lambda count: None)

    @property
    def has_scenes(self) -> bool:
        """Whether the images are scenes of the pocket world, of which everything is known."""
        return all(question.scene is not None for question in self.questions)

    @property
    def kinds(self) -> list[str]:
        """The kinds of question that are asked, each once."""
        return list(dict.fromkeys(question.kind for question in self.questions))

    def ask(
        self,
        methods: Mapping[str, Method],
        details: Details | None = None,
        questions: Sequence[ImageQuestion] | None = None,
        skip_unsupported: bool = False,
        positions: str | None = None,
        reference: str | None = None,
        alike: Alike = lambda question: None,
    ) -> dict[str, list[AnswerLine]]:
        """Each method's answers, a line per question in the questions' order; what the folder has is not asked again.

        A line has the question's number `q`, the `answer`, whether it is `right`, the visual tokens that entered the
        LLM and that a layer saw on average, and what `details(question, record)` adds; with a `reference`, the name of
        the first method, also `kl`, how far the first token is from the reference's, and of yes/no questions `yes`, how
        far it leans to yes. A method that cannot run is a
        `UserError`; with `skip_unsupported` it is left out, and the run folder's `refused` says why.
        """
        questions = self.questions if questions is None else questions
        self.run_folder.save_methods(methods)
        known = {name: {line["q"]: line for line in self.run_folder.read_answers(name)} for name in methods}
        missing = {name: sum(question.number not in known[name] for question in questions) for name in methods}
        self.expect(sum(missing.values()))
        if any(missing.values()):
            self.run_folder.save_device(self.loaded.model.device)
        refused: dict[str, str] = {}
        for answered in self._generate(methods, questions, known, positions, reference, alike):
            name = answered.method
            if answered.reason is not None:
                if known[name] or not skip_unsupported:
                    raise UserError(f"{name}: {answered.reason}")
                refused[name] = answered.reason
                self.expect(-missing[name])
                continue
            margins = yes_margins(self.loaded.processor, answered.questions, answered.logits)
            found = zip(answered.questions, answered.texts, answered.records, answered.kl or repeat(None), margins)
            lines = [
                self._line(question, text, records, {"kl": kl, "yes": margin}, details)
                for question, text, records, kl, margin in found
                if question.number not in known[name]
            ]
            known[name].update((line["q"], line) for line in lines)
            self.run_folder.append_answers(name, lines)
            self.tick(name, len(lines))
        self.run_folder.save_refused(methods, refused)
        return {
            name: [known[name][question.number] for question in questions] for name in methods if name not in refused
        }

    def _generate(
        self,
        methods: Mapping[str, Method],
        questions: Sequence[ImageQuestion],
        known: Mapping[str, Mapping[int, AnswerLine]],
        positions: str | None,
        reference: str | None,
        alike: Alike,
    ) -> Iterator[BatchAnswers]:
        """Answers to the batches in which a question's answer is not known yet."""
        return generate_answers(
            self.loaded,
            questions,
            methods,
            batch=self.batch,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            skip=lambda name, some: all(question.number in known[name] for question in some),
            positions=positions,
            reference=reference,
            alike=alike,
        )

    def _line(
        self,
        question: ImageQuestion,
        text: str,
        records: Sequence[Record],
        measured: Mapping[str, float | None],
        details: Details | None,
    ) -> AnswerLine:
        """What the run folder keeps of an answer."""
        entering, average = count_tokens(records)
        score = score_answer(question, text, self.match)
        line = {"q": question.number, "answer": text, "right": score >= 0.5}
        line |= {"score": round(score, 6)} if question.rule else {}
        line |= {"entering": entering, "average": round(average, 2)}
        line |= {name: float(f"{value:.4g}") for name, value in measured.items() if value is not None}
        return line | (details(question, join_records(records)) if details is not None else {})


def share_right(lines: Sequence[AnswerLine]) -> float:
    """The share of right answers."""
    return sum(line["right"] for line in lines) / len(lines)
