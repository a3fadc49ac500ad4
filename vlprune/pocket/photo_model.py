"""The photo model: a LLaVA of a vision tower and an LLM, a text tower beside it, and questions as token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vlprune.errors import UserError
from vlprune.pocket.photo_data import CONCEPTS, Example
from vlprune.pocket.photo_questions import THINGS, WORDS, Photograph, Question
from vlprune.pocket.photo_scenes import GRID, PATCH, SIZE
from vlprune.pocket.processor import CHAT_TEMPLATE

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, with which DINOv2 was trained
WORD_ROOM, PIECE_ROOM = 192, 288  # tokens for all questions and answers on one picture: whole words, or pieces of them
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content if part.type == 'image' %}<image>\n{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def load_tower(name: str) -> Any:
    """The vision tower, its position embeddings made for 336 pixels."""
    from transformers import AutoModel

    tower = AutoModel.from_pretrained(name, dtype=torch.float32, use_safetensors=True).eval().requires_grad_(False)
    registers = getattr(tower.config, "num_register_tokens", 0)
    if registers:
        raise UserError(
            f"--tower {name} puts {registers} register tokens between class token and patches, and a LLaVA of "
            "transformers can leave out the class token alone: choose a tower without registers."
        )
    if tower.config.image_size != SIZE:
        parts = tower.embeddings
        empty = torch.zeros(1, GRID * GRID + 1, tower.config.hidden_size)
        places = parts.interpolate_pos_encoding(empty, SIZE, SIZE).detach().contiguous()
        parts.position_embeddings = nn.Parameter(places, requires_grad=False)
        tower.config.image_size = SIZE
    return tower


def word_list(photographs: Iterable[Photograph]) -> list[str]:
    """The vocabulary of a new LLM: words of at least three captions, of the questions and of their answers."""
    captions = [text for photo in photographs for text in photo.captions]
    counted = Counter(word for text in captions for word in text.replace(".", " .").replace(",", " ,").split())
    fixed = (
        "user: assistant: is are there a an in the picture ? . , yes no what colour how many people men women children "
        "doing describe word number is written on card black blue green red white yellow orange brown pink purple gray "
        "one two three four five"
    )
    known = {*fixed.split(), *WORDS, *THINGS, *(thing + "s" for thing in THINGS), *map(str, range(100))}
    known |= {word for word, count in counted.items() if count >= 3}
    return ["<pad>", "<unk>", "<s>", "</s>", "<image>", *sorted(known)]


def new_llm(words: Any, width: int, depth: int) -> Any:
    """A Llama of these words with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 64 * 64,
        num_hidden_layers=depth,
        num_attention_heads=width // 64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def shrink_llm(llm: Any, tokenizer: Any, words: Any, depth: int) -> Any:
    """The LLM with `depth` of its layers, evenly spaced, and these words instead of its vocabulary.

    A word starts as the mean of the pieces that the LLM's own `tokenizer` cuts it into.
    """
    from copy import deepcopy

    config = deepcopy(llm.config)
    config.update(
        {
            "num_hidden_layers": depth,
            "vocab_size": len(words),
            "tie_word_embeddings": True,
            "bos_token_id": words.bos_token_id,
            "eos_token_id": words.eos_token_id,
            "pad_token_id": words.pad_token_id,
        }
    )
    small, old = type(llm)(config), llm.get_input_embeddings().weight
    for layer, place in zip(small.model.layers, torch.linspace(0, len(llm.model.layers) - 1, depth), strict=True):
        layer.load_state_dict(llm.model.layers[round(place.item())].state_dict())
    small.model.norm.load_state_dict(llm.model.norm.state_dict())
    for word, number in words.get_vocab().items():
        pieces = tokenizer(" " + word, add_special_tokens=False).input_ids
        small.model.embed_tokens.weight[number] = old[pieces].mean(dim=0)
    return small


def build_model(
    tower_name: str, layers: list[int], llm_name: str, words: Any, width: int, depth: int
) -> tuple[Any, Any]:
    """(LlavaForConditionalGeneration, LlavaProcessor) from these `layers` of the tower, side by side, and the LLM.

    An LLM "new" is made of these words, `width` and `depth`. One that is named keeps all its layers and words, or
    with a `depth` only so many layers and these words.
    """
    import transformers as tf

    tower = load_tower(tower_name)
    if llm_name == "new":
        tokenizer, llm = words, new_llm(words, width, depth)
    else:
        tokenizer = tf.AutoTokenizer.from_pretrained(llm_name, padding_side="left")
        llm = tf.AutoModelForCausalLM.from_pretrained(llm_name, dtype=torch.float32, use_safetensors=True)
        if depth:
            tokenizer, llm = words, shrink_llm(llm, tokenizer, words, depth)
        else:
            tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
            llm.resize_token_embeddings(len(tokenizer))
    config = tf.LlavaConfig(
        vision_config=tower.config,
        text_config=llm.config,
        vision_feature_layer=layers,
        vision_feature_select_strategy="default",
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=GRID * GRID,
        tie_word_embeddings=llm.config.tie_word_embeddings,
    )
    model = tf.LlavaForConditionalGeneration(config)
    model.model.vision_tower, model.model.language_model, model.lm_head = tower, llm.model, llm.lm_head
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    images = tf.CLIPImageProcessorPil(
        size={"height": SIZE, "width": SIZE}, do_center_crop=False, image_mean=list(MEAN), image_std=list(STD)
    )
    tokenizer.image_token = "<image>"
    processor = tf.LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE if tokenizer is words else CHATML,
    )
    return model, processor


def build_dual_encoder(tower: Any, words: Any) -> Any:
    """A CLIP whose text tower reads questions; of its vision side only the norm and the projection are used."""
    from transformers import CLIPConfig, CLIPModel

    text = dict(
        vocab_size=len(words),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=48,
        projection_dim=192,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    vision = dict(
        hidden_size=tower.config.hidden_size,
        intermediate_size=8,
        num_hidden_layers=0,
        num_attention_heads=6,
        image_size=PATCH,
        patch_size=PATCH,
        projection_dim=192,
    )
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=192, relevance_sign=1))
    clip.config.tower_type = tower.config.model_type  # the tower whose hidden states it was trained on
    clip.vision_model.post_layernorm.load_state_dict(tower.layernorm.state_dict())
    clip.vision_model.post_layernorm.requires_grad_(False)
    return clip


class Packer:
    """Turns questions into ids: for the LLM as the processor's chat template has them, for the text tower as they are.

    It is also the loader's `collate_fn`, so that this work is done in its processes.
    """

    def __init__(self, processor: Any, words: Any) -> None:
        self.tokenizer, self.words = processor.tokenizer, words
        message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "QUESTION"}]}]
        template = processor.apply_chat_template(message, add_generation_prompt=True)
        before, self.after = template.split("<image>")
        self.prefix: list[int] = self.tokenizer(before).input_ids
        self.room = WORD_ROOM if self.tokenizer.get_vocab() == words.get_vocab() else PIECE_ROOM
        self.known: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def tokens_of(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        """The ids from behind the image to the answer, and the answer's with the end token."""
        if (question, answer) not in self.known:
            asked = self.tokenizer(self.after.replace("QUESTION", question), add_special_tokens=False).input_ids
            said = self.tokenizer(answer, add_special_tokens=False).input_ids
            self.known[question, answer] = (asked, [*said, self.tokenizer.eos_token_id])
        return self.known[question, answer]

    def pack(self, asked: Sequence[Sequence[Question]]) -> dict[str, Tensor]:
        """(B, T) ids, the number of each token's question (−1 is padding), positions, labels and weights."""
        shape = (len(asked), self.room)
        names = {"ids": 0, "question": -1, "position": 0, "label": -100}
        packed = {name: np.full(shape, value, dtype=np.int64) for name, value in names.items()}
        weight = np.zeros(shape, dtype=np.float32)
        for b, questions in enumerate(asked):
            at = 0
            for number, question in enumerate(questions):
                ask_ids, answer = self.tokens_of(question.text, question.answer)
                ids = ask_ids + answer[:-1]
                if at + len(ids) > self.room:
                    break
                span, said = slice(at, at + len(ids)), slice(at + len(ask_ids) - 1, at + len(ids))
                packed["ids"][b, span] = ids
                packed["question"][b, span] = number
                packed["position"][b, span] = np.arange(len(ids))
                packed["label"][b, said] = answer
                weight[b, said] = 1 / len(answer)
                at += len(ids)
        return {**{name: torch.from_numpy(value) for name, value in packed.items()}, "weight": torch.from_numpy(weight)}

    def pack_texts(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(Q, W) ids for the text tower, and their mask."""
        begin, end = self.words.bos_token_id, self.words.eos_token_id
        ids = [[begin, *self.words(text, add_special_tokens=False).input_ids, end] for text in texts]
        width = max(map(len, ids))
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in ids]
        return torch.tensor([row + [end] * (width - len(row)) for row in ids]), torch.tensor(mask)

    def __call__(self, examples: list[Example]) -> dict[str, Tensor]:
        """One batch."""
        about = {q.text: CONCEPTS[q.about] for e in examples for q in e.questions if q.about}
        about = about or {"is there a dog in the picture?": CONCEPTS["dog"]}
        texts, mask = self.pack_texts(list(about))
        return {
            "pixels": torch.stack([e.pixels for e in examples]),
            "seen": torch.stack([e.seen for e in examples]),
            "look": nn.utils.rnn.pad_sequence([e.look for e in examples], batch_first=True),
            "there": torch.stack([e.labels for e in examples])[:, torch.tensor(list(about.values()))],
            "texts": texts,
            "mask": mask,
            **self.pack([e.questions for e in examples]),
        }


class Network(nn.Module):
    """Everything that is trained or used in training: the LLaVA, the dual encoder, and the scale of features."""

    model: Any
    clip: Any
    centre: Tensor
    spread: Tensor
    prefix: Tensor

    def __init__(self, model: Any, clip: Any, packer: Packer) -> None:
        super().__init__()
        self.model, self.clip, self.packer = model, clip, packer
        self.layers: list[int] = model.config.vision_feature_layer
        width = model.config.vision_config.hidden_size * len(self.layers)
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("prefix", torch.tensor(packer.prefix))
        self.sharpness, self.threshold = nn.Parameter(torch.tensor(20.0)), nn.Linear(192, 1)
        nn.init.constant_(self.threshold.bias, -6.0)

    @torch.no_grad()
    def patch_features(self, pixels: Tensor) -> Tensor:
        """(B, 576, layers · d_v) hidden states of the tower, in half precision, from bytes (B, 3, 336, 336)."""
        mean, std = (torch.tensor(v, device=pixels.device)[:, None, None] for v in (MEAN, STD))
        with torch.autocast(pixels.device.type, dtype=torch.float16, enabled=pixels.is_cuda):
            states = self.model.model.vision_tower((pixels / 255 - mean) / std, output_hidden_states=True).hidden_states
        return torch.cat([states[layer][:, 1:] for layer in self.layers], dim=-1)

    def image_tokens(self, features: Tensor) -> Tensor:
        """(B, 576, d) tokens for the LLM."""
        return self.model.model.multi_modal_projector((features - self.centre) / self.spread)

    @torch.no_grad()
    def fit_scale(self, features: Tensor) -> None:
        """Standardise the features by these, and give projected tokens the size of word embeddings."""
        flat = features.flatten(0, 1).float()
        self.centre.copy_(flat.mean(0))
        self.spread.copy_(flat.std(0) + 1e-4)
        last = self.model.model.multi_modal_projector.linear_2
        scale = self.model.get_input_embeddings().weight.std() / self.image_tokens(features[:4].float()).std()
        last.weight.mul_(scale)
        last.bias.mul_(scale)

    @torch.no_grad()
    def fold_scale(self) -> None:
        """Put the standardisation into the projector's first layer, so that a plain LLaVA needs none."""
        first = self.model.model.multi_modal_projector.linear_1
        first.weight.div_(self.spread)
        first.bias.sub_(first.weight @ self.centre)
        self.centre.zero_()
        self.spread.fill_(1.0)
