"""From a prompt to the question in it, and to the question's embedding."""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlprune.devices import Stopwatch, copy_to_device, input_device
from vlprune.pruning.chat_template import last_between, user_turn_marks
from vlprune.pruning.dual_encoder import DualEncoder, load_dual_encoder
from vlprune.types import Query, TokenView

#: Sentences that benchmarks put after the question to shape the answer; they say nothing about the image.
FORMAT_HINTS = (
    "Answer the question using a single word or phrase.",
    "Answer the question using a single word, phrase, or sentence.",
    "Answer with the option's letter from the given choices directly.",
    "Answer the question with the option's letter from the given choices directly.",
    "Answer with a single word or phrase.",
    "Please answer yes or no.",
    "Answer yes or no.",
)

#: Where configs name token ids that are no words.
SPECIAL_ID_NAMES = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id"),
)

#: What processors write between the frames of a video: "<1.5 seconds>" (Qwen3-VL), "Frame2:" (InternVL).
FRAME_MARKS = (r"<\s*\d+(?:\.\d+)?\s*seconds\s*>", r"\bFrame-?\d+\s*:")


def clean_question(text: str, drop: Iterable[str] = ()) -> str:
    """The question alone: without the words in `drop`, the turn words, format hints and double spaces.

    >>> clean_question("USER: <image> What is it? Answer with a single word or phrase. ASSISTANT:", ["<image>"])
    'What is it?'
    """
    for word in drop:
        text = text.replace(word, " ")
    for hint in FORMAT_HINTS:
        pieces = re.findall(r"\w+|[^\w\s]", hint)
        text = re.sub(r"(?<!\w)" + r"\s*".join(map(re.escape, pieces[:-1])) + r"\s*\.?(?!\w)", " ", text, flags=re.I)
    for mark in FRAME_MARKS:
        text = re.sub(mark, " ", text)
    text = re.sub(r"^\s*USER\s*:|\bASSISTANT\s*:\s*$", " ", text, flags=re.I)
    return " ".join(text.split())


class QuestionFinder:
    """Finds the question of each row of a prompt, and embeds it.

    The question is the one that the user gave, else the last user turn of the prompt; wherever it comes from,
    `clean_question` cleans it. With a processor (or tokenizer)
    the turn is cut out of the decoded prompt by its chat template. Without one, it is what follows the last image, less
    special tokens, and has no text.
    """

    def __init__(self, model: Any, method: Any, processor: Any, placeholders: set[int], dual_encoder: Any) -> None:
        self._embedding, self._device = model.get_input_embeddings(), input_device(model)
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._turn_marks = user_turn_marks(processor)
        self._placeholders = placeholders
        self._special_ids = _special_ids(model) | placeholders
        self._special_words = special_words(self._tokenizer, placeholders) if self._tokenizer is not None else []
        self._warned = False
        self._needed = bool(method.reads_question)
        self._sign: int | None = getattr(method, "sign", None)
        pooling = getattr(method, "pooling", "auto")
        self._dual = load_dual_encoder(dual_encoder, model, processor, pooling) if dual_encoder is not None else None
        wanted = getattr(method, "relevance", "auto")
        if wanted == "clip" and self._dual is None:
            raise ValueError(
                "relevance='clip' needs attach(..., dual_encoder=): a CLIPModel, the id or path of one, or 'auto'."
            )
        self._source = "clip" if self._dual is not None and wanted != "llm" else "llm"

    def embed_by(self, embed_one: Callable[[Any, list[int]], Tensor | None]) -> None:
        """Let the dual encoder, if there is one, embed a single text by this function in place of `clip_text`."""
        if self._dual is not None:
            self._dual.embed_one = embed_one

    def read_query(
        self, rows: int, wanted: Iterable[int], query: "str | Sequence[str | None] | None"
    ) -> "dict[int, str | None]":
        """What the user asks in each of the `wanted` rows, of so many; None where the prompt has the question.

        Raises what is wrong with `query`: this comes before the tower runs.
        """
        if not self._needed:
            return {}
        check_query(query)
        given, texts = _query_per_row(query, rows), {}
        for row in wanted:
            said = given[row]
            if said is None and query is not None:
                raise ValueError(f"query[{row}] is None, but row {row} of the prompt has an image: pass its question.")
            texts[row] = None if said is None else clean_question(said, self._special_words)
            if texts[row] == "":
                raise ValueError(f"query={said!r}: there is no question in it: pass query= with its text.")
            if said is not None and self._source == "llm" and self._tokenizer is None:
                raise ValueError("query= needs attach(..., processor=) to turn its text into the LLM's tokens.")
        return texts

    def embed(self, rows: list[list[int]], given: "dict[int, str | None]") -> "EmbeddedQuestions":
        """The embedded questions of the rows that have images, which are those that `given` has from `read_query`.

        Needs nothing of the images, so that it can be done while the device works on them.
        """
        found = self.find(rows, given)
        texts = {row: text for row, (text, _) in found.items()}
        watch = Stopwatch(self._device)
        tokens: dict[int, Tensor] = {}
        with watch:
            if self._source == "llm":
                for text, ids in found.values():
                    if not ids:
                        raise ValueError(f"the question {text!r} has no tokens: pass query= with other words.")
                tokens = {row: self._embed_ids(ids) for row, (_, ids) in found.items()}
                means = {row: token.float().mean(dim=0, keepdim=True) for row, token in tokens.items()}
            else:
                means = self._embed_texts(texts)
        dual = self._dual if self._source == "clip" else None
        return EmbeddedQuestions(self._needed, dual, self._sign, texts, means, tokens, watch)

    def find(self, rows: list[list[int]], given: "dict[int, str | None]") -> "dict[int, tuple[str | None, list[int]]]":
        """The text (None without a tokenizer) and token ids of the question of each row that `given` has.

        `rows` are the token ids of each row of the batch, without padding.
        """
        found: dict[int, tuple[str | None, list[int]]] = {}
        for row, text in given.items():
            ids: list[int] = []
            if text is None and self._tokenizer is None:
                last = max(i for i, token in enumerate(rows[row]) if token in self._placeholders)
                ids = [token for token in rows[row][last + 1 :] if token not in self._special_ids]
            else:
                text = text if text is not None else self._last_user_turn(rows[row])
                if self._tokenizer is not None:
                    ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
            if not ids and not (text or "").strip():
                raise ValueError(f"no question was found in row {row} of the prompt: pass query= with its text.")
            found[row] = (text, ids)
        return found

    def _embed_ids(self, ids: list[int]) -> Tensor:
        return self._embedding(copy_to_device(torch.tensor(ids), self._device)).detach()

    def _embed_texts(self, texts: "dict[int, str | None]") -> dict[int, Tensor]:
        """By row (1, c): each text as the dual encoder sees it; equal texts are embedded once."""
        spoken = [text for text in texts.values() if text]
        if len(spoken) != len(texts):
            raise ValueError("relevance='clip' needs the question's text: pass query= or attach(..., processor=).")
        distinct = sorted(set(spoken))
        assert self._dual is not None
        embeds = dict(zip(distinct, self._dual.text(distinct))) if distinct else {}
        return {row: embeds[text] for row, text in texts.items() if text}

    def _last_user_turn(self, ids: list[int]) -> str:
        """The words of the last user turn in a row of token ids."""
        text, found = last_user_turn(ids, self._tokenizer, self._placeholders, self._turn_marks)
        if not found and not self._warned:
            self._warned = True
            warnings.warn(
                "vlprune: the chat template's user turn was not found in the prompt; "
                "the text after the last image is taken as the question (pass query= to say it yourself).",
                stacklevel=2,
            )
        return text


def last_user_turn(
    ids: list[int], tokenizer: Any, placeholders: set[int], turn_marks: tuple[str, str] | None
) -> tuple[str, bool]:
    """The words of the last user turn in a prompt's token ids; and False if its chat template's marks are not in it.

    `turn_marks` is what the template writes around a user's turn. Without them, or where they are not found, the turn
    is what follows the last image.
    """
    special = special_words(tokenizer, placeholders)
    if turn_marks is not None:
        text = tokenizer.decode([token for token in ids if token not in placeholders], skip_special_tokens=False)
        turn = last_between(text, *turn_marks)
        if turn is not None:
            return clean_question(turn, special), True
    last = max((i for i, token in enumerate(ids) if token in placeholders), default=-1)
    after = tokenizer.decode(ids[last + 1 :], skip_special_tokens=True)
    return clean_question(after, special), turn_marks is None


def special_words(tokenizer: Any, placeholders: set[int]) -> list[str]:
    """What a tokenizer writes for special tokens and for those that stand for images."""
    images = [tokenizer.decode([placeholder]) for placeholder in sorted(placeholders)]
    return [token for token in tokenizer.all_special_tokens if token] + images


def warn_of_llm_relevance(method: Any, dual_encoder: Any, has_dual_encoder: bool, stacklevel: int = 1) -> None:
    """Warn that relevance falls back to the LLM's embeddings, if it does, and say how to avoid it.

    `has_dual_encoder` says whether the model's tower comes from a CLIP or SigLIP.
    """
    if not method.reads_question or dual_encoder is not None or getattr(method, "relevance", "llm") != "auto":
        return
    how = 'pass dual_encoder= ("auto" finds a published one), ' if has_dual_encoder else ""
    warnings.warn(
        f"vlprune: {method.name} compares question and tokens by the LLM's embeddings, for there is no dual encoder: "
        f'{how}relevance="none" to do without the question, or relevance="llm" if that is meant.',
        stacklevel=stacklevel + 1,
    )


@dataclass(frozen=True)
class EmbeddedQuestions:
    """The embedded questions of a call, by row: `means` (1, c), and `tokens` (l, d) where the space is the LLM's own.

    `stopwatch` times what it takes to embed them, and the images in the same space.
    """

    needed: bool
    dual: DualEncoder | None
    sign: int | None
    texts: "dict[int, str | None]"
    means: dict[int, Tensor]
    tokens: dict[int, Tensor]
    stopwatch: Stopwatch

    def query_for(self, view: TokenView, rows: list[int]) -> Query | None:
        """The questions for a view's images, which lie in these rows; None where the method needs none."""
        if not self.needed:
            return None
        if self.dual is not None and view.tower is None:
            raise ValueError("relevance='clip' needs the vision tower's hidden states, which this model did not give.")
        with self.stopwatch:
            device = view.features.device
            means = [self.means[row].to(device) for row in rows]
            text = torch.stack(means) if len(means) > 1 else means[0][None]
            texts = tuple(self.texts[row] for row in rows)
            if self.dual is not None:
                assert view.tower is not None
                return Query(self.dual.image(view.tower), text, self.sign or self.dual.sign, "clip", texts)
            tokens = tuple(self.tokens[row].to(device) for row in rows)
            return Query(view.features, text, self.sign or 1, "llm", texts, tokens)


def _query_per_row(query: "str | Sequence[str | None] | None", rows: int) -> "list[str | None]":
    if query is None or isinstance(query, str):
        return [query] * rows
    if len(query) != rows:
        raise ValueError(
            f"query has {len(query)} entries, but the prompt has {rows} rows: pass one per row or one string."
        )
    return list(query)


def check_query(query: Any) -> None:
    """Raise `TypeError` unless `query` is None, a string, or a list of strings (None for rows without an image)."""
    if query is None or isinstance(query, str):
        return
    if not isinstance(query, (list, tuple)) or not all(q is None or isinstance(q, str) for q in query):
        raise TypeError(f"query={query!r}: pass a string, or a list with one string (or None) per row.")


def _special_ids(model: Any) -> set[int]:
    """The token ids that the model's configs name and that are no words."""
    special: set[int] = set()
    for config in (model.config, model.config.get_text_config(), model.generation_config):
        for name in SPECIAL_ID_NAMES:
            value = getattr(config, name, None)
            special.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return special
