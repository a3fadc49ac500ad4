"""The pocket model's processor: a word-level tokenizer, CLIP's image processor, LLaVA-1.5's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlavaProcessor

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}USER: {% else %}ASSISTANT: {% endif %}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content if part.type == 'image' %}<image>\n{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endif %}"
    "{% if message.role == 'user' %} {% else %}</s>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def build_processor(words: list[str], *, size: int, patch: int) -> LlavaProcessor:
    """Build the processor for a vocabulary, of which the first five are pad, unknown, begin, end and image."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    pad, unknown, begin, end, image = words[:5]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[?.,!]"), "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, words.index(begin))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        extra_special_tokens={"image_token": image},
        padding_side="left",
        model_max_length=4096,
    )
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size}),
        tokenizer=fast,
        patch_size=patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
