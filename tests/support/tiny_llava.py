"""The tiny models and prompts that the tests of the seam share."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SIZE, PATCH, TOWER, WIDTH = 48, 8, 24, 32
TOKENS = (SIZE // PATCH) ** 2
WORDS = [
    *("<pad>", "<s>", "<unk>", "</s>", "<image>", "USER", ":", "ASSISTANT", "?", ".", ",", "a", "about", "and"),
    *("answer", "are", "big", "blue", "cat", "color", "dog", "dogs", "first", "how", "image", "in", "is", "it"),
    *("left", "like", "many", "me", "of", "one", "or", "other", "phrase", "question", "red", "second", "single"),
    *("system", "tell", "the", "thing", "this", "using", "what", "where", "which", "word", "yellow", "Answer"),
]
VOCAB = 96
END = WORDS.index("</s>")  # not 2: for CLIP an end of 2 means "the highest id", as in its first checkpoints
IMAGE = WORDS.index("<image>")
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ' : ' }}"
    "{% endif %}{% for part in message['content'] if part['type'] == 'image' %}{{ '<image> ' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT :' }}{% endif %}"
)


def loud(model, seed, scale=0.35):
    """Weights large enough that no two logits are nearly equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            elif "norm" not in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def vision_config():
    return CLIPVisionConfig(
        hidden_size=TOWER,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=PATCH,
        projection_dim=16,
    )


def text_config(layers=2):
    return LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=END,
    )


def llava(seed=0, layers=2, attention="sdpa", vision=None, strategy="default"):
    config = LlavaConfig(
        vision_config=vision or vision_config(),
        text_config=text_config(layers),
        image_token_id=IMAGE,
        vision_feature_layer=-2,
        vision_feature_select_strategy=strategy,
    )
    model = loud(LlavaForConditionalGeneration._from_config(config, attn_implementation=attention), seed)
    model.generation_config.pad_token_id = 0
    model.generation_config.bos_token_id = 1
    model.generation_config.eos_token_id = VOCAB - 1  # reached seldom, so that answers are long
    return model


def clip(seed=5, positions=77):
    vision = vision_config().to_dict()
    text = dict(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=len(WORDS),
        max_position_embeddings=positions,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=END,
    )
    return loud(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)), seed)


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        padding_side="left",
    )


def processor():
    from transformers import CLIPImageProcessorPil

    images = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


def picture(seed):
    return torch.randint(0, 256, (3, SIZE, SIZE), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def prompt(processor, text, images):
    content = [{"type": "image"}] * images + [{"type": "text", "text": text}]
    return processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )


def inputs(processor, texts, images, device, seed=0):
    """A batch: one question and a number of images per row."""
    prompts = [prompt(processor, text, count) for text, count in zip(texts, images)]
    return encode(processor, prompts, sum(images), device, seed)


def encode(processor, prompts, images, device, seed=0):
    pictures = [picture(seed + i) for i in range(images)] or None
    return dict(processor(images=pictures, text=prompts, padding=True, return_tensors="pt").to(device))
