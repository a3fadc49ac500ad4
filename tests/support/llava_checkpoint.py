"""A tiny LLaVA and its CLIP, saved as checkpoints with LLaVA-1.5's template and words."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

WORDS = [
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "<image>",
    "USER:",
    "ASSISTANT:",
    "what",
    "color",
    "is",
    "the",
    "cat",
    "?",
    "how",
    "many",
    "dogs",
]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>\n' }}{% else %}{{ part['text'] + ' ' }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def _vision(side):
    """A tower with side x side patches."""
    sizes = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2)
    return CLIPVisionConfig(**sizes, image_size=8 * side, patch_size=8)


def _processor(template, side=4):
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, extra_special_tokens={"image_token": "<image>"}, padding_side="left", **special
    )
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 8 * side}, crop_size={"height": 8 * side, "width": 8 * side}
        ),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )


def save_llava(folder, template=TEMPLATE, side=4):
    torch.manual_seed(0)
    text = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = LlavaConfig(vision_config=_vision(side), text_config=text, image_token_index=4, image_seq_length=side**2)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    _processor(template, side).save_pretrained(folder)
    return str(folder)


def save_clip(folder, side=4):
    text = dict(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=len(WORDS),
        max_position_embeddings=16,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = CLIPConfig(text_config=text, vision_config=_vision(side).to_dict(), projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    _processor(None).tokenizer.save_pretrained(folder)
    return str(folder)
