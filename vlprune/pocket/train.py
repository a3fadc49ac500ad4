"""Train the pocket model from nothing, on one GPU: `python -m vlprune.pocket.train --steps 12000 --run runs/pocket`.

Reads top to bottom: the words, the models, the data, the losses, the loop. Stop it at any time and start it again with
the same `--run`: it goes on from its last checkpoint. `--export DIR` writes the trained model as `from_pretrained`
reads it.

Two things make it work. A dense loss on the vision tower, which must name the shape, colour and digit under every
patch, gets the tower off the ground. Showing the LLM 576, 192 or 64 visual tokens in turn, dropped at random or in
smooth blobs with positions kept or re-numbered, makes it a model that can be pruned at all; the patterns belong to no
pruning method.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from vlprune.pocket.processor import build_processor
from vlprune.pocket.render import pack_scenes, paint_scenes, things_under_grid
from vlprune.pocket.world import COLORS, KINDS, SHAPES, SIZE, Dice, draw_caption, draw_question, scenes, vocabulary

# ---------------------------------------------------------------- the words

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<image>")
PAD, UNK, BOS, EOS, IMAGE = range(5)
WORDS = [*SPECIAL, "user:", "assistant:", *vocabulary()]
WORD_ID = {word: i for i, word in enumerate(WORDS)}
TEXT_LENGTH = 112  # eight turns of at most fourteen words
CAPTION_LENGTH = 24
TURNS = 8


def token_ids(text: str) -> list[int]:
    """The words of a text as numbers."""
    return [WORD_ID[word] for word in text.replace("?", " ?").split()]


# ---------------------------------------------------------------- the models

PATCH = 8
GRID = SIZE // PATCH
TOKENS = GRID * GRID


def llava_config() -> LlavaConfig:
    """The pocket model's configuration."""
    vision = CLIPVisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=7,
        num_attention_heads=4,
        image_size=SIZE,
        patch_size=PATCH,
        projection_dim=256,
    )
    text = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        image_seq_length=TOKENS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )


def clip_config() -> CLIPConfig:
    """The configuration of the CLIP that shares the pocket model's vision tower."""
    text = CLIPTextConfig(
        vocab_size=len(WORDS),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=CAPTION_LENGTH,
        projection_dim=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    config = CLIPConfig(
        text_config=text.to_dict(), vision_config=llava_config().vision_config.to_dict(), projection_dim=256
    )
    # Here the patches that a text names are the most similar to it: 98.0 % right against 82.5 % with the opposite
    # sign (the model card says how measured). In OpenAI's CLIP it is the other way round.
    config.relevance_sign = 1
    return config


class PocketModel(nn.Module):
    """The LLaVA, the CLIP that shares its tower, and the heads of the dense loss, which are thrown away afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.llava = LlavaForConditionalGeneration(llava_config())
        self.clip = CLIPModel(clip_config())
        self.clip.vision_model = self.llava.model.vision_tower
        self.dense = nn.Linear(256, len(SHAPES) + len(COLORS) + 10 + 1)

    def encode_image(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, 192, 192) → patches as LLaVA reads them (B, 576, 256), and CLIP's image embedding (B, 256)."""
        tower = self.llava.model.vision_tower
        states = tower.pre_layrnorm(tower.embeddings(pixels))
        for layer in tower.encoder.layers[:-1]:
            states = layer(states, None)
        last = tower.encoder.layers[-1](states, None)
        return states[:, 1:], self.clip.visual_projection(tower.post_layernorm(last[:, 0]))

    def answer_logits(self, patches: Tensor, text: Tensor, positions: Tensor, asked: Tensor) -> Tensor:
        """Logits (B, A, words) at the places `asked` (B, A) of the text (B, T) after the kept patches (B, k, 256).

        `positions` (B, 2+k+T) are those of the two words before the image, the patches and the text.
        """
        llm, batch = self.llava.model.language_model, len(text)
        start = torch.tensor([BOS, WORD_ID["user:"]], device=text.device).expand(batch, 2)
        words = llm.embed_tokens(torch.cat([start, text], 1))
        visual = self.llava.model.multi_modal_projector(patches).to(words.dtype)
        states = torch.cat([words[:, :2], visual, words[:, 2:]], 1)
        turns = llm.rotary_emb(states, positions)
        # the layers are called without a mask, so that attention is the plain causal kernel whatever the positions
        for layer in llm.layers:
            states = layer(states, attention_mask=None, position_embeddings=turns)
        where = (asked + 2 + patches.shape[1])[..., None].expand(-1, -1, states.shape[-1])
        return self.llava.lm_head(llm.norm(states.gather(1, where)))


# ---------------------------------------------------------------- the data


class Batches(IterableDataset):
    """Batch after batch of fresh scenes with eight questions each; batch `i` is the same on every run."""

    def __init__(self, split: str, batch: int, start: int) -> None:
        self.split, self.batch, self.start = split, batch, start

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        index = self.start + first
        while True:
            yield make_batch(self.split, self.batch, index)
            index += stride


def make_batch(split: str, batch: int, index: int) -> dict[str, Tensor]:
    """Scenes with their conversations and captions, as tensors: the batch of that index in a split."""
    drawn = scenes(split, batch, start=index * batch)
    things, background = pack_scenes(drawn)
    text = torch.full((batch, TEXT_LENGTH), PAD)
    asked = torch.zeros(batch, 2 * TURNS, dtype=torch.long)  # where each answer, and the end after it, is predicted
    answers = torch.full((batch, 2 * TURNS), -100)
    kinds = torch.full((batch, 2 * TURNS), -1)
    captions = torch.full((batch, CAPTION_LENGTH), PAD)
    for row, scene in enumerate(drawn):
        dice, line, slot, before = Dice(f"turns {scene.name}"), [], 0, set()
        for _ in range(TURNS):
            kind = dice.pick((*KINDS, "count", "digit"))  # the two that take longest to learn come twice
            question = draw_question(dice, scene, kind)
            if question is None or question.text in before:  # an answer already given would only be copied
                continue
            before.add(question.text)
            line += [
                *token_ids(question.text),
                WORD_ID["assistant:"],
                WORD_ID[question.answer],
                EOS,
                WORD_ID["user:"],
            ]
            asked[row, slot : slot + 2] = torch.tensor([len(line) - 4, len(line) - 3])
            answers[row, slot : slot + 2] = torch.tensor([WORD_ID[question.answer], EOS])
            kinds[row, slot] = KINDS.index(kind)
            slot += 2
        text[row, : len(line)] = torch.tensor(line)
        words = [BOS, *token_ids(draw_caption(dice, scene))[: CAPTION_LENGTH - 2], EOS]
        captions[row, : len(words)] = torch.tensor(words)
    return {
        "things": torch.from_numpy(things),
        "background": torch.from_numpy(background),
        "text": text,
        "asked": asked,
        "answers": answers,
        "kinds": kinds,
        "captions": captions,
    }


def sample_kept_patches(batch: int, k: int, device: torch.device) -> Tensor:
    """Indices of k of 576 patches, sorted (B, k): drawn evenly, or where a smooth random field is highest."""
    field = torch.rand(batch, 1, GRID, GRID, device=device)
    if torch.rand(()) < 0.5:
        field = 0.05 * field + F.interpolate(
            torch.rand(batch, 1, 6, 6, device=device), size=(GRID, GRID), mode="bicubic", align_corners=False
        )
    return field.flatten(1).topk(k, dim=1).indices.sort(1).values


def make_positions(kept: Tensor, length: int, renumber: bool) -> Tensor:
    """Positions (B, 2+k+T) of start, kept patches and text: re-numbered, or as in the prompt with all patches."""
    batch, k = kept.shape
    start = torch.arange(2, device=kept.device).expand(batch, 2)
    visual = torch.arange(k, device=kept.device).expand(batch, k) if renumber else kept
    after = torch.arange(length, device=kept.device).expand(batch, length) + (k if renumber else TOKENS)
    return torch.cat([start, visual + 2, after + 2], 1)


# ---------------------------------------------------------------- the losses


def dense_loss(logits: Tensor, things: Tensor) -> Tensor:
    """Loss of naming, for each patch, the shape, colour and digit of the thing under it, or that there is none."""
    under = things_under_grid(things, GRID)
    label = things.gather(1, under.clamp(min=0)[..., None].expand(-1, -1, things.shape[-1]))
    seen = (under >= 0).float()
    shape, color, digit, any_thing = logits.float().split([len(SHAPES), len(COLORS), 10, 1], -1)
    parts = zip((shape, color, digit), label[..., 5:8].long().unbind(-1))
    named = sum(F.cross_entropy(part.transpose(1, 2), target, reduction="none") for part, target in parts)
    return (named * seen).sum() / seen.sum() + F.binary_cross_entropy_with_logits(any_thing[..., 0], seen)


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """CLIP's loss: each image finds its caption in the batch, and each caption its image."""
    logits = scale.exp().clamp(max=100) * F.normalize(image.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


# ---------------------------------------------------------------- the loop


def save_checkpoint(run: Path, model: PocketModel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write weights and Adam's two moments; under another name first, so that no checkpoint is ever half there."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())  # each shared weight once
    for name, parameter in list(tensors.items()):
        for key in ("exp_avg", "exp_avg_sq"):
            if parameter in optimizer.state:
                tensors[f"{key}:{name}"] = optimizer.state[parameter][key]
    tensors = {name: t.detach().contiguous() for name, t in tensors.items()}
    save_file(tensors, run / "new.safetensors", metadata={"step": str(step)})
    (run / "new.safetensors").replace(run / "checkpoint.safetensors")


def load_checkpoint(run: Path, model: PocketModel, optimizer: torch.optim.Optimizer) -> int:
    """Load the run's last checkpoint, and return the step that it was written at; 0 if there is none."""
    if not (run / "checkpoint.safetensors").exists():
        return 0
    with safe_open(run / "checkpoint.safetensors", "pt") as file:
        names = set(file.keys())
        step = int(file.metadata()["step"])
        for name, parameter in model.named_parameters():
            parameter.data.copy_(file.get_tensor(name))
            if f"exp_avg:{name}" in names:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step), device=parameter.device),
                    "exp_avg": file.get_tensor(f"exp_avg:{name}").to(parameter.device),
                    "exp_avg_sq": file.get_tensor(f"exp_avg_sq:{name}").to(parameter.device),
                }
    return step


def export_model(folder: Path, model: PocketModel) -> None:
    """Write the LLaVA as `from_pretrained` reads it, and what CLIP has beside the shared tower, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {n: p.detach().bfloat16().contiguous().cpu() for n, p in model.llava.state_dict().items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    clip = {n: p for n, p in model.clip.state_dict().items() if not n.startswith("vision_model.")}
    clip = {n: p.detach().bfloat16().contiguous().cpu() for n, p in clip.items() if p.is_floating_point()}
    save_file(clip, folder / "clip.safetensors", metadata={"format": "pt"})
    config = llava_config()
    config.architectures = ["LlavaForConditionalGeneration"]
    config.dtype = "float32"  # stored small, run exactly
    config.save_pretrained(folder)
    clip_config().to_json_file(folder / "clip.json")
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD).save_pretrained(folder)
    build_processor(WORDS, size=SIZE, patch=PATCH).save_pretrained(folder)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vlprune.pocket.train", description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=12_000, help="length of the whole training")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--run", type=Path, default=Path("runs/pocket"), help="where checkpoints and the log go")
    parser.add_argument("--export", type=Path, help="where to write the trained model")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def make_optimizer(model: PocketModel, lr: float) -> torch.optim.Optimizer:
    """AdamW, with weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)


def learning_rate(step: int, first: int, args: argparse.Namespace) -> float:
    """Warm-up, also after a resumption at step `first`, then a cosine."""
    warm_up = min(1, (step + 1) / 300, (step - first + 1) / 50)
    return args.lr * warm_up * (0.01 + 0.99 * (1 + math.cos(math.pi * (step / args.steps))) / 2)


def main() -> None:
    args = parse_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    args.run.mkdir(parents=True, exist_ok=True)
    model = PocketModel().to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M weights on {device}", flush=True)
    optimizer = make_optimizer(model, args.lr)
    step = load_checkpoint(args.run, model, optimizer)
    torch.manual_seed(step)
    data = iter(DataLoader(Batches("train", args.batch, step), batch_size=None, num_workers=args.workers))
    functions: list[Any] = [model.encode_image, model.answer_logits, paint_scenes]
    encode_image, answer_logits, paint = [torch.compile(f, dynamic=False) if args.compile else f for f in functions]

    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073], device=device)[:, None, None]  # CLIP's own
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711], device=device)[:, None, None]
    right: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    began, first = time.time(), step
    while step < args.steps:
        done = step / args.steps
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, first, args)
        # all tokens at first, then fewer and fewer steps with all of them, down to two in five
        fewer = 0.6 * min(1, max(0, (done - 0.08) / 0.2))
        k = TOKENS if torch.rand(()) >= fewer else (192, 64)[int(torch.rand(()) < 0.6)]

        batch = {name: t.to(device, non_blocking=True) for name, t in next(data).items()}
        with torch.no_grad():
            noise = torch.randn(args.batch, SIZE, SIZE, device=device)
            pixels = (paint(batch["things"], batch["background"], noise) - mean) / std
            kept = sample_kept_patches(args.batch, k, device)
            positions = make_positions(kept, TEXT_LENGTH, renumber=bool(torch.rand(()) < 0.5))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            patches, image = encode_image(pixels)
            few = patches.gather(1, kept[..., None].expand(-1, -1, patches.shape[-1])) if k < TOKENS else patches
            logits = answer_logits(few, batch["text"], positions, batch["asked"])
            text = model.clip.text_model(input_ids=batch["captions"]).pooler_output
            text = model.clip.text_projection(text)
            named = model.dense(patches)
        answer_loss = F.cross_entropy(logits.float().flatten(0, 1), batch["answers"].flatten())
        dense = dense_loss(named, batch["things"])
        clip = contrastive_loss(image, text, model.clip.logit_scale)
        dense_weight = 1.5 if done < 0.3 else 0.3
        loss = answer_loss + dense_weight * dense + 0.25 * clip
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1

        with torch.no_grad():
            hit = logits.argmax(-1) == batch["answers"]
            for i in range(len(KINDS)):
                mine = batch["kinds"] == i
                right[k, i].append(torch.stack([(hit & mine).sum(), mine.sum()]))
        if step % 100 == 0 or step == args.steps:
            row = {
                "step": step,
                "loss": round(loss.item(), 4),
                "answers": round(answer_loss.item(), 4),
                "dense": round(dense.item(), 4),
                "clip": round(clip.item(), 4),
                "seconds": round(time.time() - began, 1),
            }
            for (size, kind), counts in sorted(right.items()):
                yes, total = torch.stack(counts).sum(0).tolist()
                row[f"{size}/{KINDS[kind]}"] = round(100 * yes / max(1, total), 1)
            right.clear()
            with (args.run / "log.jsonl").open("a") as log:
                log.write(json.dumps(row) + "\n")
            left = (time.time() - began) / (step - first) * (args.steps - step)
            scores = "  ".join(
                f"{size}: " + " ".join(f"{row.get(f'{size}/{kind}', 0):.0f}" for kind in KINDS)
                for size in (576, 192, 64)
                if f"{size}/exist" in row
            )
            print(
                f"{step}/{args.steps}  {left / 60:.1f} min left  loss {row['loss']} "
                f"(answers {row['answers']} dense {row['dense']} clip {row['clip']})  {scores}",
                flush=True,
            )
        if step % 1000 == 0 or step == args.steps:
            save_checkpoint(args.run, model, optimizer, step)
    if args.export:
        export_model(args.export, model)
        print(f"wrote {args.export}", flush=True)


if __name__ == "__main__":
    main()
