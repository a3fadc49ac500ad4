"""From a prompt to the question in it, and to the question's embedding."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vlprune.devices import Stopwatch, copy_to_device
from vlprune.types import Query

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
SPECIAL = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id"),
)

#: What processors write between the frames of a video: "<1.5 seconds>" (Qwen3-VL), "Frame2:" (InternVL).
FRAME_MARKS = (r"<\s*\d+(?:\.\d+)?\s*seconds\s*>", r"\bFrame-?\d+\s*:")


def clean(text: str, drop: Iterable[str] = ()) -> str:
    """The question alone: without the words in `drop`, the turn words, format hints and double spaces.

    >>> clean("USER: <image> What is it? Answer the question using a single word or phrase. ASSISTANT:", ["<image>"])
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


class Questions:
    """Finds each row's question: the given one, else the last user turn of the prompt.

    With a processor (or tokenizer) the turn is cut out of the decoded prompt by its chat template. Without
    one, it is what follows the last image, less special tokens, and has no text.
    """

    def __init__(self, model: Any, method: Any, processor: Any, placeholders: set[int], dual_encoder: Any) -> None:
        self._embed = model.get_input_embeddings()
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._turn = _turn_marks(processor)
        self._placeholders = placeholders
        self._special = _special_ids(model) | placeholders
        self._warned = False
        self._needed = bool(method.needs_query)
        self._sign: int | None = getattr(method, "sign", None)
        self._dual = load_dual_encoder(dual_encoder, model, processor) if dual_encoder is not None else None
        wants = getattr(method, "relevance", "auto")
        if wants == "clip" and self._dual is None:
            raise ValueError(
                "relevance='clip' needs attach(..., dual_encoder=): a CLIPModel, or the id or path of one."
            )
        self._source = "clip" if self._dual is not None and wants != "llm" else "llm"

    def asker(
        self, rows: list[list[int]], wanted: Iterable[int], query: "str | Sequence[str | None] | None"
    ) -> "Asker":
        """What gives the images of a view their questions, for the `wanted` rows, which have images.

        The questions are embedded here, so that it can be done before the vision tower's results are waited for.
        """
        found = self.find(rows, wanted, query) if self._needed else {}
        texts = {row: text for row, (text, _) in found.items()}
        watch = Stopwatch(self._embed.weight.device)
        tokens: dict[int, Tensor] = {}
        with watch:
            if self._source == "llm":
                if not all(ids for _, ids in found.values()):
                    raise ValueError("query= needs attach(..., processor=) to turn its text into the LLM's tokens.")
                tokens = {row: self._embedded(ids) for row, (_, ids) in found.items()}
                means = {row: token.float().mean(dim=0, keepdim=True) for row, token in tokens.items()}
            else:
                spoken = [text for text in texts.values() if text]
                if len(spoken) != len(texts):
                    raise ValueError(
                        "relevance='clip' needs the question's text: pass query= or attach(..., processor=)."
                    )
                distinct = sorted(set(spoken))
                assert self._dual is not None
                embeds = dict(zip(distinct, self._dual.text(distinct))) if distinct else {}
                means = {row: embeds[text] for row, text in texts.items() if text}
        return Asker(
            self._needed, self._dual if self._source == "clip" else None, self._sign, texts, means, tokens, watch
        )

    def find(
        self, rows: list[list[int]], wanted: Iterable[int], query: "str | Sequence[str | None] | None"
    ) -> "dict[int, tuple[str | None, list[int]]]":
        """The text (None without a tokenizer) and token ids of the question of each wanted row.

        `rows` are the token ids of each row of the batch, without padding.
        """
        check_query(query)
        given = _per_row(query, len(rows))
        found: dict[int, tuple[str | None, list[int]]] = {}
        for row in wanted:
            text = given[row]
            if text is None and query is not None and not isinstance(query, str):
                raise ValueError(f"query[{row}] is None, but row {row} of the prompt has an image: pass its question.")
            ids: list[int] = []
            if text is None and self._tokenizer is None:
                last = max(i for i, token in enumerate(rows[row]) if token in self._placeholders)
                ids = [token for token in rows[row][last + 1 :] if token not in self._special]
            else:
                text = text if text is not None else self._last_turn(rows[row])
                if self._tokenizer is not None:
                    ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
            if not ids and not (text or "").strip():
                raise ValueError(f"no question was found in row {row} of the prompt: pass query= with its text.")
            found[row] = (text, ids)
        return found

    def _embedded(self, ids: list[int]) -> Tensor:
        weight = self._embed.weight
        return self._embed(copy_to_device(torch.tensor(ids), weight.device)).detach()

    def _last_turn(self, ids: list[int]) -> str:
        tokenizer = self._tokenizer
        images = [tokenizer.decode([placeholder]) for placeholder in sorted(self._placeholders)]
        special = [token for token in tokenizer.all_special_tokens if token] + images
        text = tokenizer.decode([token for token in ids if token not in self._placeholders], skip_special_tokens=False)
        if self._turn is not None:
            turn = _between(text, *self._turn)
            if turn is not None:
                return clean(turn, special)
            if not self._warned:
                self._warned = True
                warnings.warn(
                    "vlprune: the chat template's user turn was not found in the prompt; "
                    "the text after the last image is taken as the question (pass query= to say it yourself).",
                    stacklevel=2,
                )
        last = max((i for i, token in enumerate(ids) if token in self._placeholders), default=-1)
        return clean(tokenizer.decode(ids[last + 1 :], skip_special_tokens=True), special)


@dataclass(frozen=True)
class Asker:
    """The embedded questions of a call, by row: means (1, c), and tokens (l, d) where the space is the LLM's own.

    `reading` is the time it takes to embed them, and the images in the same space.
    """

    needed: bool
    dual: "DualEncoder | None"
    sign: int | None
    texts: "dict[int, str | None]"
    means: dict[int, Tensor]
    tokens: dict[int, Tensor]
    reading: Stopwatch

    def __call__(self, view: Any, rows: list[int]) -> Query | None:
        """The questions for a view's images, which lie in these rows; None where the method needs none."""
        if not self.needed:
            return None
        if self.dual is not None and view.tower is None:
            raise ValueError("relevance='clip' needs the vision tower's hidden states, which this model did not give.")
        with self.reading:
            device = view.features.device
            means = [self.means[row].to(device) for row in rows]
            text = torch.stack(means) if len(means) > 1 else means[0][None]
            texts = tuple(self.texts[row] for row in rows)
            if self.dual is not None:
                return Query(self.dual.image(view.tower), text, self.sign or self.dual.sign, "clip", texts)
            tokens = tuple(self.tokens[row].to(device) for row in rows)
            return Query(view.features, text, self.sign or 1, "llm", texts, tokens)


def framed(processor: Any, image: Any, questions: Sequence[str]) -> Any:
    """The model's inputs for several questions about one image: one row each, in the processor's chat template."""
    if processor is None:
        raise ValueError("ask_many needs attach(..., processor=).")
    if isinstance(questions, str) or not questions or not all(isinstance(q, str) for q in questions):
        raise ValueError(f"questions={questions!r}: pass a list of at least one string.")
    placeholder = getattr(processor, "image_token", None)
    if placeholder and any(placeholder in question for question in questions):
        raise ValueError(f"questions={questions!r}: {placeholder!r} stands for an image in the prompt, leave it out.")
    prompts = []
    for question in questions:
        turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        prompts.append(processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False))
    images = [image] * len(prompts)
    return processor(images=images, text=prompts, padding=True, padding_side="left", return_tensors="pt")


def _per_row(query: "str | Sequence[str | None] | None", rows: int) -> "list[str | None]":
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
    special: set[int] = set()
    for config in (model.config, model.config.get_text_config(), model.generation_config):
        for name in SPECIAL:
            value = getattr(config, name, None)
            special.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return special


def _turn_marks(processor: Any) -> tuple[str, str] | None:
    """What the chat template writes before a user's text and after it, found by rendering a conversation of marks."""
    if getattr(processor, "chat_template", None) is None:
        processor = getattr(processor, "tokenizer", None)
    if getattr(processor, "chat_template", None) is None:
        return None
    said = ["vlprunefirst", "vlprunesecond", "vlprunethird"]
    for parts in (True, False):  # templates take a turn's content as a list of parts, or as a string
        turns = [
            {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
            for role, text in zip(("user", "assistant", "user"), said)
        ]
        marks = _rendered_marks(processor, turns, said)
        if marks is not None:
            return marks
    return None


def _rendered_marks(processor: Any, turns: list[dict[str, Any]], said: list[str]) -> tuple[str, str] | None:
    from jinja2.exceptions import TemplateError

    try:
        text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except (TemplateError, TypeError):  # not the kind of conversation that this template takes
        return None
    pieces = re.split("|".join(said), text)
    if len(pieces) != 4 or "'type'" in text:
        return None
    before, _, between, after = pieces
    size = 0
    while size < min(len(before), len(between)) and before[-size - 1] == between[-size - 1]:
        size += 1
    header = before[len(before) - size :]
    return (header, after) if header.strip() else None


def _between(text: str, header: str, after: str) -> str | None:
    """The last stretch of `text` after `header` and before `after`, whatever the spacing (decoding may change it).

    Marks are matched as they are written or, where that fails, in lower case (a tokenizer may lower all it reads).
    """
    places = [i for i, char in enumerate(text) if not char.isspace()]
    solid = "".join(text[i] for i in places)
    header, after = "".join(header.split()), "".join(after.split())
    if header not in solid:
        header, after = header.lower(), after.lower()
    start = solid.rfind(header)
    if start < 0:
        return None
    start += len(header)
    end = solid.find(after, start) if after else -1
    first = places[start] if start < len(places) else len(text)
    return text[first : places[end] if end >= 0 else len(text)]


class DualEncoder:
    """A text tower and an image tower that share a space: relevance as CLIP or SigLIP see it.

    The image side is `visual_projection(post_layernorm(h))` of the hidden states `h` that the multimodal
    model's own tower has just computed; the tower of the dual encoder is not run. The text side is the mean
    of the `text_embeds` of the question's chunks, each as long as the text tower can read.
    """

    def __init__(self, encoder: Any, tokenizer: Any, model: Any) -> None:
        self.encoder, self.tokenizer = encoder, tokenizer
        vision = getattr(encoder.config, "vision_config", None)
        if vision is None or not hasattr(encoder, "get_text_features"):
            raise TypeError(f"dual_encoder is a {type(encoder).__name__}: pass a CLIPModel or a SiglipModel.")
        tower = model.config.vision_config
        if vision.hidden_size != tower.hidden_size:
            raise ValueError(
                f"dual_encoder {type(encoder).__name__} has a vision tower of width {vision.hidden_size}, "
                f"but the tower of {type(model).__name__} has {tower.hidden_size}: "
                "pass the encoder that the model was built on."
            )
        self._siglip = str(encoder.config.model_type).startswith("siglip")
        self._length = int(encoder.config.text_config.max_position_embeddings)
        if tokenizer.eos_token_id is None:
            raise ValueError("dual_encoder: its tokenizer has no end-of-text token.")
        self._by_parts = not self._siglip and _parts_agree(encoder, self.chunks("a")[0])

    @property
    def sign(self) -> int:
        """−1 for CLIP, +1 for others, or what the encoder's config says in `relevance_sign`."""
        default = -1 if self.encoder.config.model_type == "clip" else 1
        return int(getattr(self.encoder.config, "relevance_sign", default))

    @torch.no_grad()
    def image(self, states: Tensor) -> Tensor:
        """(B, n, d_v) hidden states of the tower -> (B, n, c) in the shared space, on the states' device."""
        norm = self.encoder.vision_model.post_layernorm
        project = getattr(self.encoder, "visual_projection", torch.nn.Identity())
        return project(norm(states.to(norm.weight.device, norm.weight.dtype))).to(states.device)

    def chunks(self, text: str) -> list[list[int]]:
        """The token ids of the text, in pieces that the text tower can read, each with its own begin and end."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        end = [self.tokenizer.eos_token_id]
        begin = [] if self._siglip or self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        size = self._length - len(begin) - len(end)
        return [begin + ids[i : i + size] + end for i in range(0, max(len(ids), 1), size)]

    @torch.no_grad()
    def text(self, texts: Sequence[str]) -> Tensor:
        """(B, 1, c): each text's mean over its chunks' text embeddings, in float32."""
        chunks = [self.chunks(text) for text in texts]
        flat = [chunk for pieces in chunks for chunk in pieces]
        if len(flat) == 1 and self._by_parts and not self.encoder.training:
            embeds = clip_text(self.encoder, flat[0])
            if embeds is not None:
                return embeds.float()[None]
        width = self._length if self._siglip else max(map(len, flat))
        pad = self.tokenizer.pad_token_id
        pad = self.tokenizer.eos_token_id if pad is None else pad
        device = self.encoder.device
        ids = copy_to_device(torch.tensor([chunk + [pad] * (width - len(chunk)) for chunk in flat]), device)
        mask = copy_to_device(torch.tensor([[1] * len(chunk) + [0] * (width - len(chunk)) for chunk in flat]), device)
        output = self.encoder.get_text_features(input_ids=ids, attention_mask=None if self._siglip else mask)
        embeds = getattr(output, "pooler_output", output).float()
        parts = embeds.split([len(pieces) for pieces in chunks])
        return torch.stack([part.mean(dim=0, keepdim=True) for part in parts])


def clip_text(encoder: Any, ids: list[int]) -> Tensor | None:
    """(1, c) what `CLIPModel.get_text_features` gives for one text, by the parts of its text tower alone.

    A question has few tokens and a text tower few layers, so that much of that call is not arithmetic. Here there are
    no masks, for one text has no padding, and the last layer is computed for the end token only, which is all that is
    read of it. None without an end token.
    """
    tower, config = encoder.text_model, encoder.config.text_config
    end = max(ids) if config.eos_token_id == 2 else config.eos_token_id  # transformers: 2 stands in old configs
    if end not in ids:
        return None
    ids = ids[: ids.index(end) + 1]  # what follows is not seen: attention is causal
    at = copy_to_device(torch.tensor([ids]), encoder.device)
    x = tower.embeddings.token_embedding(at) + tower.embeddings.position_embedding.weight[: len(ids)]
    *layers, last = tower.encoder.layers

    def heads(values: Tensor) -> Tensor:
        return values.view(1, values.shape[1], config.num_attention_heads, -1).transpose(1, 2)

    for layer in (*layers, last):
        attention = layer.self_attn
        h = layer.layer_norm1(x)
        keys, values = heads(attention.k_proj(h)), heads(attention.v_proj(h))
        if layer is last:
            h, x = h[:, -1:], x[:, -1:]
        seen = scaled_dot_product_attention(heads(attention.q_proj(h)), keys, values, is_causal=layer is not last)
        x = x + attention.out_proj(seen.transpose(1, 2).reshape(x.shape))
        x = x + layer.mlp(layer.layer_norm2(x))
    return encoder.text_projection(tower.final_layer_norm(x[:, 0]))


@torch.no_grad()
def _parts_agree(encoder: Any, ids: list[int]) -> bool:
    """Whether `clip_text` is this encoder's text tower: an unknown one need not have CLIP's parts."""
    try:
        got = clip_text(encoder, ids)
    except (AttributeError, TypeError, RuntimeError, ValueError):
        return False
    if got is None:
        return False
    whole = encoder.get_text_features(input_ids=torch.tensor([ids], device=encoder.device))
    want = getattr(whole, "pooler_output", whole)
    close = 0.02 if want.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return got.shape == want.shape and bool((got - want).norm() <= close * want.norm())


def load_dual_encoder(given: Any, model: Any, processor: Any) -> DualEncoder:
    """What the user passed as `dual_encoder=`: a model, a (model, tokenizer) pair, or the id or path of one.

    Of a model alone, the tokenizer is the processor's where their vocabularies have the same size, else the
    one that lies where the model was loaded from.
    """
    if isinstance(given, str):
        from transformers import AutoModel, AutoTokenizer

        encoder = AutoModel.from_pretrained(given, dtype=model.dtype).to(model.device).eval()
        return DualEncoder(encoder, AutoTokenizer.from_pretrained(given), model)
    if isinstance(given, tuple):
        encoder, tokenizer = given
        return DualEncoder(encoder, tokenizer, model)
    if not hasattr(given, "config"):
        raise TypeError(f"dual_encoder={given!r}: pass a CLIPModel, a (model, tokenizer) pair, or an id or path.")
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is not None and len(tokenizer) == given.config.text_config.vocab_size:
        return DualEncoder(given, tokenizer, model)
    place = getattr(given.config, "_name_or_path", "")
    if not place:
        raise ValueError("dual_encoder has no tokenizer beside it: pass dual_encoder=(model, tokenizer).")
    from transformers import AutoTokenizer

    return DualEncoder(given, AutoTokenizer.from_pretrained(place), model)
