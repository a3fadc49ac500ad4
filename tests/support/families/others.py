"""InternVL, and models without a file of their own: Gemma 3, Idefics3, SmolVLM, PaliGemma and ViP-LLaVA."""

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GemmaConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Qwen2Config,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    VipLlavaConfig,
    VipLlavaForConditionalGeneration,
)

from tests.support.families.case import (
    CLOSE,
    IMAGE,
    OPEN,
    PAD,
    SPECIAL,
    TEXT,
    TOWER,
    VOCAB,
    WIDTH,
    Case,
    Token,
    Visual,
    clip_tower,
    grid,
    llama,
    noise,
    siglip_tower,
)


class InternVL(Case):
    """A large image is cut into tiles; a small copy of the whole, the thumbnail, follows them."""

    name, model_class = "internvl", InternVLForConditionalGeneration
    tiles = (2, 1, 3, 0, 4)  # without the thumbnail; 0 is an image that is not cut

    def config(self):
        vision = {"hidden_size": TOWER, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        vision |= {"image_size": [48, 48], "patch_size": [8, 8]}
        return InternVLConfig(
            vision_config=vision,
            text_config=Qwen2Config(**TEXT, **SPECIAL),
            image_token_id=IMAGE,
            image_seq_length=9,
            tie_word_embeddings=False,
        )

    def image(self, seed):
        tiles = self.tiles[seed % len(self.tiles)]
        names = ["tile"] * tiles + ["thumbnail"] if tiles else ["image"]
        tokens = [Token(part) for part in range(len(names)) for _ in range(9)]
        pixels = noise(len(names), 3, 48, 48, seed=seed)
        return Visual("image", pixels, [(name, (3, 3)) for name in names], tokens, [len(tokens)])


class Blocked(Case):
    """Models whose visual tokens attend in both directions: the mask is written out, True where i may see j."""

    window: int | None = None

    def masks(self, prompt):
        size = range(len(prompt.ids))
        same = [[prompt.blocks[i] is not None and prompt.blocks[i] == prompt.blocks[j] for j in size] for i in size]
        full = [[j <= i or same[i][j] for j in size] for i in size]
        if self.window is None:
            return torch.tensor(full)[None, None]
        near = [[full[i][j] and j > i - self.window for j in size] for i in size]
        return {
            "full_attention": torch.tensor(full)[None, None],
            "sliding_attention": torch.tensor(near)[None, None],
        }

    def states(self, model, prompt, places):
        output = model.model.language_model(
            inputs_embeds=torch.stack(prompt.vectors)[None],
            position_ids=torch.tensor(places)[None],
            attention_mask=self.masks(prompt),
            use_cache=False,
        )
        return output.last_hidden_state[0]


class Gemma3(Blocked):
    """The tokens of an image see each other; every second layer sees 12 tokens back."""

    name, model_class, window = "gemma3", Gemma3ForConditionalGeneration, 12
    special = Case.special | {OPEN, CLOSE}

    def config(self):
        text = {**TEXT, **SPECIAL, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": self.window}
        text |= {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False}
        return Gemma3Config(
            vision_config=siglip_tower(64),
            text_config=text,
            mm_tokens_per_image=16,
            boi_token_index=OPEN,
            eoi_token_index=CLOSE,
            image_token_index=IMAGE,
            tie_word_embeddings=False,
        )

    def image(self, seed):
        return grid("image", "image", 4, 4, noise(1, 3, 64, 64, seed=seed))

    def spelled(self, visual):
        return [OPEN, *super().spelled(visual), CLOSE]

    def companions(self, ids):
        return {"token_type_ids": (ids == IMAGE).long()}

    def blocks(self, sample, start):
        blocks, number = [], 0
        for i, token in enumerate(sample.ids):
            number += token == IMAGE and (i == 0 or sample.ids[i - 1] != IMAGE)
            blocks.append((start, number) if token == IMAGE else None)
        return blocks


class PaliGemma(Blocked):
    """The whole prompt sees itself in both directions; positions begin at 1."""

    name, model_class = "paligemma", PaliGemmaForConditionalGeneration

    def config(self):
        text = GemmaConfig(**TEXT, **SPECIAL, head_dim=8, tie_word_embeddings=False)
        return PaliGemmaConfig(
            vision_config=siglip_tower(32),
            text_config=text,
            image_token_index=IMAGE,
            projection_dim=WIDTH,
            hidden_size=WIDTH,
            vocab_size=VOCAB,
            tie_word_embeddings=False,
        )

    def image(self, seed):
        return grid("image", "image", 4, 4, noise(1, 3, 32, 32, seed=seed))

    def companions(self, ids):
        return {"token_type_ids": torch.zeros_like(ids)}

    def blocks(self, sample, start):
        return [0 if start == 0 else None] * len(sample.ids)

    def states(self, model, prompt, places):
        return super().states(model, prompt, [place + 1 for place in places])


class VipLlava(Case):
    name, model_class = "vipllava", VipLlavaForConditionalGeneration

    def config(self):
        return VipLlavaConfig(
            vision_config=clip_tower(32),
            text_config=llama(),
            image_token_index=IMAGE,
            vision_feature_layers=[-2, 1],
        )

    def image(self, seed):
        return grid("image", "image", 4, 4, noise(1, 3, 32, 32, seed=seed))


class Idefics3(Case):
    """Images lie in a tensor with one row per prompt, filled up with images that are zero."""

    name, model_class, config_class = "idefics3", Idefics3ForConditionalGeneration, Idefics3Config
    decoder = "text_model"

    def config(self):
        vision = {"hidden_size": TOWER, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        return self.config_class(
            vision_config={**vision, "image_size": 64, "patch_size": 8},
            text_config={**TEXT, **SPECIAL, "model_type": "llama"},
            image_token_id=IMAGE,
            pad_token_id=PAD,
            scale_factor=2,
        )

    def image(self, seed):
        return grid("image", "image", 4, 4, noise(1, 3, 64, 64, seed=seed))

    def spelled(self, visual):
        return [OPEN, *super().spelled(visual), OPEN]

    def tensors(self, samples):
        most = max(len(sample.visuals) for sample in samples)
        pixels = torch.zeros(len(samples), most, 3, 64, 64)
        for row, sample in enumerate(samples):
            for i, visual in enumerate(sample.visuals):
                pixels[row, i] = visual.pixels[0]
        seen = (pixels != 0).any(dim=2)
        return {"pixel_values": pixels, "pixel_attention_mask": seen.long()}

    def encode(self, model, visual):
        features = model.model.get_image_features(visual.pixels[None]).pooler_output
        return torch.cat([piece.reshape(-1, WIDTH) for piece in features]), []


class SmolVLM(Idefics3):
    name, model_class, config_class = "smolvlm", SmolVLMForConditionalGeneration, SmolVLMConfig
