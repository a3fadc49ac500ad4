"""One visitor's image or video: what methods keep of it, and what the model answers. The vision tower runs once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.compare import MethodResult
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.one_question import (
    attach_pruner,
    decode_answer,
    explain_method_errors,
    join_records,
    measure_answer,
    picture_backgrounds,
    prepare_inputs,
)
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.media.image import MAX_PIXELS, ImageError, open_image
from vlprune.media.video import VIDEO_ENDINGS, Clip, read_clip
from vlprune.methods import Method
from vlprune.methods.base import QueryMethod
from vlprune.models import family_of
from vlprune.pruner import Pruner
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.probe import encode_images
from vlprune.record import Record
from vlprune.selection.numerics import TIE
from vlprune.types import Query, Selection, TokenView

FRAMES = 16  # of a video
MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Choice:
    """What a method keeps of the image: its record, the pictures that its tokens lie on, and how long choosing took.

    `seconds` is the whole time from the question to the record, without the vision tower.
    """

    record: Record
    background: Image.Image | list[Image.Image]
    seconds: float


@dataclass(frozen=True)
class TokenPair:
    """Two tokens: their cosine, and whether Script's graph lets them meet and joins them by an edge."""

    first: int
    second: int
    cosine: float
    meet: bool
    tau: float

    @property
    def joined(self) -> bool:
        """Whether the graph has an edge between them."""
        return self.meet and self.cosine >= self.tau - TIE


@dataclass(frozen=True)
class _Recorder(QueryMethod):
    """Keeps one token, and notes the view and the question that a method is given."""

    seen: list[tuple[TokenView, Query | None]] = field(default_factory=list, compare=False, repr=False)
    name: ClassVar[str] = "recorder"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        self.seen.append((view, query))
        return Selection(kept=torch.zeros(len(view.features), 1, dtype=torch.int64, device=view.features.device))


class Session:
    """An image or a video with the features that the vision tower made of it, for a model that sessions share.

    `lock` is held while the model runs: one call at a time, whoever asks.

    >>> from vlprune import Script, pocket
    >>> from vlprune.evaluation.load_model import load_model
    >>> session = Session(load_model("pocket", None, "cpu"), threading.Lock())
    >>> session.show(pocket.images(pocket.scenes("test", 1))[0])
    >>> session.select("what color is the star?", Script(keep=64)).record.after
    64
    """

    def __init__(self, loaded: LoadedModel, lock: threading.Lock) -> None:
        self.loaded, self._lock = loaded, lock
        self._features = FeatureCache(float("inf"))
        self._shown: Image.Image | Clip | None = None
        self._seen: tuple[str, TokenView, Query | None] | None = None
        self.vision_seconds: float | None = None  # of the one run of the tower

    # --- what is looked at ---

    def open(self, path: str | Path, frames: int = FRAMES, max_pixels: int = MAX_PIXELS) -> None:
        """Look at the image or the video in a file from now on; a file that cannot be used is a `UserError`."""
        try:
            if Path(path).suffix.lower() in VIDEO_ENDINGS:
                if getattr(self.loaded.processor, "video_processor", None) is None:
                    raise UserError(f"--model {self.loaded.name} takes images only.")
                self.show(read_clip(path, frames))
            else:
                self.show(open_image(path, max_pixels=max_pixels))
        except ImageError as error:
            self.close()
            raise UserError(str(error).replace(repr(str(path)), repr(Path(path).name))) from error

    def show(self, shown: Image.Image | Clip) -> None:
        """Look at an image or a video from now on."""
        self.close()
        self._shown = shown

    def close(self) -> None:
        """Forget the image and all that was computed of it."""
        self._features.clear()
        self._shown, self._seen = None, None
        self.vision_seconds = None

    @property
    def has_image(self) -> bool:
        """Whether an image or a video is looked at."""
        return self._shown is not None

    @property
    def is_video(self) -> bool:
        """Whether a video is looked at."""
        return isinstance(self._shown, Clip)

    @property
    def shown(self) -> Image.Image | Clip:
        """The image or video; `UserError` where there is none yet."""
        if self._shown is None:
            raise UserError("there is no image yet: upload one, or take an example.")
        return self._shown

    # --- what is kept ---

    def select(self, question: str, method: Method) -> Choice:
        """What a method keeps for a question. The LLM runs only for methods that choose inside it."""
        inputs = self._inputs(question)
        with self._lock:
            self._encode(inputs)
            began = time.perf_counter()
            with self._attach(method, question) as pruner, explain_method_errors(self.loaded, method):
                if pruner.first_cut is None:
                    pruner.select(inputs)
                else:
                    self.loaded.model.generate(**inputs, max_new_tokens=1, do_sample=False)
            seconds = time.perf_counter() - began
        if not pruner.records:
            raise UserError(f"--model {self.loaded.name}: family {pruner.family.name!r} prunes no videos.")
        record = join_records(pruner.records)
        return Choice(record, picture_backgrounds(self.loaded, inputs, self.shown, record), seconds)

    def tokens(self, question: str) -> tuple[TokenView, Query | None]:
        """All tokens of the image as one view (1, n, d), and the question in the space where relevance is measured."""
        if self._seen is None or self._seen[0] != question:
            inputs, recorder = self._inputs(question), _Recorder(keep=1)
            with self._lock:
                self._encode(inputs)
                with self._attach(recorder, question) as pruner, explain_method_errors(self.loaded, recorder):
                    pruner.select(inputs)
            self._seen = question, *_join_views(recorder.seen)
        return self._seen[1:]

    def pair(self, question: str, first: int, second: int, *, tau: float = 0.3, graph: str = "bipartite") -> TokenPair:
        """The cosine of two tokens, and whether Script's graph joins them."""
        from vlprune.studio.explain import meets

        features = self.tokens(question)[0].features[0]
        for i in (first, second):
            if not 0 <= i < len(features):
                raise UserError(f"token {i}: this image has tokens 0 to {len(features) - 1}.")
        cosine = cosine_of(features[first], features[second])
        return TokenPair(first, second, cosine, bool(meets(len(features), first, graph)[second]), tau)

    # --- what is answered ---

    def answer(
        self, question: str, method: Method | None, name: str | None = None, max_new_tokens: int = MAX_NEW_TOKENS
    ) -> Iterator[MethodResult]:
        """The answer as it is written, token by token, then once more with its cost.

        `method` None keeps all tokens, which gives the plain model's answer, bit for bit. A method that cannot run
        gives one result, with the reason. Closing the iterator stops the model.
        """
        named = name or (ALL_TOKENS if method is None else method.name)
        chosen = keep_all_tokens() if method is None else method
        inputs = self._inputs(question)
        with self._lock:
            self._encode(inputs)
            try:
                with self._attach(chosen, question) as pruner:
                    yield from self._stream(pruner, inputs, named, max_new_tokens)
            except UserError as error:
                yield MethodResult(named, reason=str(error).removeprefix(f"--method {chosen.name}: "))

    def _stream(self, pruner: Pruner, inputs: dict[str, Any], name: str, length: int) -> Iterator[MethodResult]:
        """Generate in a thread, and yield what is written so far, then the result."""
        from transformers import TextIteratorStreamer

        tokenizer = getattr(self.loaded.processor, "tokenizer", self.loaded.processor)
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        stop, ended = threading.Event(), _Ended()
        criteria = [lambda ids, scores, **_: torch.full((len(ids),), stop.is_set(), device=ids.device)]

        def generate() -> None:
            try:
                options = {"streamer": streamer, "stopping_criteria": criteria, "max_new_tokens": length}
                ended.cost = measure_answer(self.loaded, pruner, inputs, **options)
            except BaseException as error:
                ended.error = error
            finally:
                streamer.end()

        thread = threading.Thread(target=generate, daemon=True)
        thread.start()
        try:
            written = ""
            for piece in streamer:
                written += piece
                if written.strip():
                    yield MethodResult(name, written.strip())
        finally:
            stop.set()
            thread.join()
        if ended.error is not None:
            raise ended.error
        yield MethodResult(name, decode_answer(self.loaded, ended.cost), ended.cost, pruner.records)

    # --- the model ---

    def _inputs(self, question: str) -> dict[str, Any]:
        """The inputs of `generate`; an empty question is refused."""
        shown = self.shown
        if not question.strip():
            raise UserError("the question is empty.")
        return prepare_inputs(self.loaded, shown, question)

    def _encode(self, inputs: dict[str, Any]) -> None:
        """Run the vision tower, unless its features of this image are known."""
        if self.vision_seconds is not None:
            return
        family = family_of(self.loaded.model)
        pixels = {name: value for name, value in inputs.items() if name in family.vision_inputs}
        began = time.perf_counter()
        with torch.no_grad():
            encode_images(self.loaded.model, family, inputs["input_ids"], pixels, self._features, attention=True)
        self.vision_seconds = time.perf_counter() - began

    def _attach(self, method: Method, question: str) -> Pruner:
        return attach_pruner(self.loaded, method, question, self._features)


class _Ended:
    """How a thread that generates ended: with a cost, or with an error."""

    cost: Any = None
    error: BaseException | None = None


def cosine_of(first: Tensor, second: Tensor) -> float:
    """The cosine of two vectors (d,), in float64.

    >>> round(cosine_of(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])), 4)
    0.7071
    """
    return float(torch.nn.functional.cosine_similarity(first.double(), second.double(), dim=0))


def _join_views(seen: list[tuple[TokenView, Query | None]]) -> tuple[TokenView, Query | None]:
    """The tokens of all images of a prompt as one image: some models take tiles or frames for images of their own."""
    views, queries = [view for view, _ in seen], [query for _, query in seen]
    features = torch.cat([view.features.flatten(0, 1) for view in views])[None].float().cpu()
    single = len(views) == 1 and len(views[0].features) == 1
    view = TokenView(features, views[0].grid if single else (1, features.shape[1]))
    found = [query for query in queries if query is not None]
    if len(found) < len(views):
        return view, None
    first = found[0]
    image = torch.cat([query.image.flatten(0, 1) for query in found])[None].float().cpu()
    same = first.source == "llm" and image.shape == features.shape
    text = first.text[:1].float().cpu()
    return view, Query(features if same else image, text, first.sign, first.source, first.texts[:1], first.tokens[:1])
