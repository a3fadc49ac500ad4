"""Train a LLaVA that answers about photographs: `python -m vlprune.pocket.train_photo --help`.

LLaVA's own recipe (Liu et al., 2023): the vision tower is frozen; a two-layer projector is trained on captions, then
the projector and the LLM on questions and captions. A text tower is trained beside them against the tower's patch
tokens: it is the dual encoder. Each step asks several questions of each picture in one sequence, in which no question
sees another; in the first steps a question about something pasted is shown where to look, and a minority of the steps
hides most of the picture by patterns that belong to no method. What is kept is a moving average of the weights. The
file reads from top to bottom: losses, validation, the loop; data and model are in the files beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vlprune.errors import UserError
from vlprune.pocket.photo_data import Plan, TrainingSet, pixels_of, read_splits, unseen_scenes
from vlprune.pocket.photo_model import Network, Packer, build_dual_encoder, build_model, word_list
from vlprune.pocket.photo_questions import Question
from vlprune.pocket.photo_scenes import PATCH, SIZE
from vlprune.pocket.processor import build_processor

# ---- losses


def answer_loss(network: Network, tokens: Tensor, packed: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
    """Mean over questions of the mean loss of an answer's tokens; a question sees its part of the image and itself.

    A share `smoothing` of each token's label goes to all tokens alike: captions are silent about much that is there.
    """
    words, device, seen = network.model.get_input_embeddings(), tokens.device, packed["seen"]
    batch, image, prefix = len(tokens), tokens.shape[1], len(network.prefix)
    x = torch.cat(
        [words(network.prefix).expand(batch, -1, -1).to(tokens.dtype), tokens, words(packed["ids"]).to(tokens.dtype)],
        dim=1,
    )
    shown = torch.cat([seen.new_ones(batch, prefix), seen], dim=1)
    counted = shown.long().cumsum(1)
    positions = torch.cat([(counted - 1).clamp(min=0), counted[:, -1:] + packed["position"]], dim=1)
    number = torch.cat([torch.full((batch, prefix + image), -2, device=device), packed["question"]], dim=1)
    visible = torch.cat([shown, torch.ones_like(packed["ids"], dtype=torch.bool)], dim=1)
    order = torch.arange(x.shape[1], device=device)
    mine = (number[:, None, :] == -2) | (number[:, None, :] == number[:, :, None])
    allowed = (order[:, None] >= order[None]) & mine & visible[:, None, :]
    rows = torch.arange(batch, device=device)[:, None]
    allowed[:, prefix + image :, prefix : prefix + image] &= packed["look"][rows, packed["question"].clamp(min=0)]
    allowed |= torch.eye(x.shape[1], dtype=torch.bool, device=device)
    mask = torch.zeros(allowed.shape, dtype=x.dtype, device=device).masked_fill_(~allowed, torch.finfo(x.dtype).min)
    states = network.model.model.language_model(
        inputs_embeds=x, position_ids=positions, attention_mask=mask[:, None], use_cache=False
    ).last_hidden_state[:, prefix + image :]
    told = packed["label"] >= 0
    logits = network.model.lm_head(states[told]).float()
    losses = F.cross_entropy(logits, packed["label"][told], reduction="none", label_smoothing=smoothing)
    weights = packed["weight"][told]
    return (losses * weights).sum() / weights.sum()


def embed_texts(network: Network, ids: Tensor, mask: Tensor) -> Tensor:
    """(Q, c) the text tower's embeddings, of length 1."""
    output = network.clip.get_text_features(input_ids=ids, attention_mask=mask)
    return F.normalize(getattr(output, "pooler_output", output).float(), dim=-1)


def embed_patches(network: Network, features: Tensor) -> Tensor:
    """(B, 576, c) the patches in the text tower's space, of length 1; `features` are those of `patch_features`."""
    last = features[..., -network.model.config.vision_config.hidden_size :]
    clip = network.clip
    return F.normalize(clip.visual_projection(clip.vision_model.post_layernorm(last.float())).float(), dim=-1)


def relevance_loss(network: Network, features: Tensor, packed: dict[str, Tensor]) -> Tensor:
    """Every question of the batch against every picture: does some patch show what the question is about?"""
    texts, wanted = embed_texts(network, packed["texts"], packed["mask"]), packed["there"]
    cosines = torch.einsum("bnc,qc->bqn", embed_patches(network, features), texts)
    best = (torch.logsumexp(30 * cosines, dim=-1) - math.log(cosines.shape[-1])) / 30
    logits = network.sharpness * best + network.threshold(texts)[:, 0]
    losses = F.binary_cross_entropy_with_logits(logits, wanted.clamp(min=0).float(), reduction="none")
    known = wanted >= 0
    return (losses * known).sum() / known.sum()


# ---- validation


@torch.no_grad()
def answer_margins(network: Network, tokens: Tensor, questions: Sequence[Question]) -> tuple[Tensor, Tensor]:
    """(Q,) the margin of each right answer, or of "yes" over "no", and whether the answer is right.

    `tokens` (Q, m, d) are the visual tokens of each question's picture. An answer is right if each of its tokens is the
    likeliest after those before it, which is what greedy generation gives.
    """
    rows = [network.packer.tokens_of(question.text, question.answer) for question in questions]
    width = max(len(ask_ids) + len(answer) for ask_ids, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    label = torch.full((len(rows), width), -100)
    for i, (ask_ids, answer) in enumerate(rows):
        ids[i, : len(ask_ids) + len(answer) - 1] = torch.tensor(ask_ids + answer[:-1])
        label[i, len(ask_ids) - 1 : len(ask_ids) + len(answer) - 1] = torch.tensor(answer)
    ids, label = ids.to(tokens.device), label.to(tokens.device)
    words = network.model.get_input_embeddings()
    x = torch.cat(
        [words(network.prefix).expand(len(rows), -1, -1).to(tokens.dtype), tokens, words(ids).to(tokens.dtype)], 1
    )
    states = network.model.model.language_model(inputs_embeds=x, use_cache=False).last_hidden_state[:, -width:]
    told = label >= 0
    logits = network.model.lm_head(states[told]).float()
    right = logits.gather(1, label[told][:, None])[:, 0]
    rest = logits.scatter(1, label[told][:, None], -torch.inf).amax(dim=1)
    owner = told.nonzero()[:, 0]
    margin = torch.full((len(rows),), torch.inf, device=tokens.device).scatter_reduce(0, owner, right - rest, "amin")
    correct = margin > 0
    yes, no = (network.packer.tokens_of(questions[0].text, word)[1][0] for word in ("yes", "no"))
    first = told & (told.cumsum(1) == 1)
    spoken = network.model.lm_head(states[first]).float()
    asks = torch.tensor([question.kind == "existence" for question in questions], device=tokens.device)
    said_yes = spoken[:, yes] - spoken[:, no]
    positive = torch.tensor([question.answer == "yes" for question in questions], device=tokens.device)
    return torch.where(asks, said_yes, margin), torch.where(asks, (said_yes > 0) == positive, correct)


@torch.no_grad()
def validate(network: Network, scenes: Sequence[tuple[Tensor, list[Question]]]) -> dict[str, float]:
    """The share of right answers by kind of question; a scene is its pixels and its questions."""
    device = network.prefix.device
    right: dict[str, list[bool]] = {}
    for i in range(0, len(scenes), 64):
        part = scenes[i : i + 64]
        owners = torch.tensor([j for j, (_, asked) in enumerate(part) for _ in asked], device=device)
        questions = [question for _, asked in part for question in asked]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            features = network.patch_features(torch.stack([pixels for pixels, _ in part]).to(device))
            tokens = network.image_tokens(features)
            for k in range(0, len(questions), 128):
                _, correct = answer_margins(network, tokens[owners[k : k + 128]], questions[k : k + 128])
                for question, good in zip(questions[k : k + 128], correct.tolist(), strict=True):
                    inset = question.kind == "existence" and question.boxes
                    right.setdefault("existence inset" if inset else question.kind, []).append(good)
    return {kind: sum(goods) / len(goods) for kind, goods in right.items()}


def score(share: dict[str, float]) -> float:
    """What the best model is chosen by: the mean of existence, of existence in an inset, and of reading."""
    reading = [value for kind, value in share.items() if kind.startswith("read")]
    return (share["existence"] + share["existence inset"] + sum(reading) / len(reading)) / 3


# ---- the loop


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vlprune.pocket.train_photo", description=__doc__)
    parser.add_argument("--tower", default="facebook/dinov2-small", help="vision tower: folder or hub id")
    parser.add_argument("--tower-layers", default="3,6,12", help="hidden states of it that the projector sees")
    parser.add_argument("--llm", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="folder, hub id, or 'new'")
    parser.add_argument("--photos", type=Path, required=True, help="folder of photographs")
    parser.add_argument(
        "--captions", type=Path, required=True, help="Flickr8k.token.txt, the lists of splits beside it"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and its checkpoint")
    parser.add_argument("--steps", type=int, default=None, help="4000, and 6000 of an LLM that is new or cut")
    parser.add_argument("--align-steps", type=int, default=250, help="first steps: captions only, a whole LLM frozen")
    parser.add_argument("--hint-steps", type=int, default=1500, help="next steps: questions are shown where to look")
    parser.add_argument("--smoothing", type=float, default=0.05, help="of the answers' labels")
    parser.add_argument("--average", type=float, default=0.998, help="what the kept weights keep of theirs at a step")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=None, help="of the LLM (2e-4; new or with --depth: 1e-3, 6e-4)")
    parser.add_argument("--patterns", type=float, default=0.4, help="share of steps that hide tokens by a pattern")
    parser.add_argument("--width", type=int, default=384, help="of a new LLM")
    parser.add_argument("--depth", type=int, default=0, help="layers: of a new LLM; of another, as many of its own")
    parser.add_argument("--validate-every", type=int, default=500)
    parser.add_argument("--validation-scenes", type=int, default=150, help="of each of four kinds")
    parser.add_argument("--checkpoint-seconds", type=float, default=120)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    new = args.llm == "new"
    args.depth = args.depth or (10 if new else 0)
    args.steps = args.steps or (6000 if args.depth else 4000)
    args.lr = args.lr or (1e-3 if new else 6e-4 if args.depth else 2e-4)
    return args


def parameter_groups(network: Network, rate: float) -> list[dict[str, Any]]:
    """The projector, the LLM at this `rate`, and the dual encoder with its two helpers, each at its own."""
    llm = dict(network.model.model.language_model.named_parameters())
    dual = [p for p in network.clip.parameters() if p.requires_grad] + list(network.threshold.parameters())
    groups = [
        {"name": "projector", "params": list(network.model.model.multi_modal_projector.parameters()), "rate": 1e-3},
        {"name": "llm", "params": [p for p in llm.values() if p.ndim > 1], "rate": rate, "weight_decay": 0.05},
        {"name": "llm", "params": [p for p in llm.values() if p.ndim < 2], "rate": rate},
        {"name": "dual", "params": dual, "rate": 1e-3, "weight_decay": 0.01},
        {"name": "dual", "params": [network.sharpness], "rate": 1e-2},
    ]
    return [{"weight_decay": 0.0, **group, "lr": 0.0} for group in groups]


def save_checkpoint(folder: Path, network: Network, average: Network, optimizer: Any, step: int, best: float) -> None:
    """Write weights, their average and optimizer state as safetensors; a broken write leaves the last one whole."""
    from safetensors.torch import save_file

    names = {id(p): name for name, p in network.named_parameters()}
    tensors = {f"weight.{name}": p.detach() for name, p in network.named_parameters() if p.requires_grad}
    tensors |= {f"average.{name}": p.detach() for name, p in average.named_parameters() if f"weight.{name}" in tensors}
    tensors |= {"buffer.centre": network.centre, "buffer.spread": network.spread}
    for parameter, state in optimizer.state.items():
        tensors |= {f"{key}.{names[id(parameter)]}": value for key, value in state.items()}
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "checkpoint.tmp")
    (folder / "checkpoint.tmp").rename(folder / "checkpoint.safetensors")
    (folder / "checkpoint.json").write_text(json.dumps({"step": step, "best": best}))


def load_checkpoint(folder: Path, network: Network, average: Network, optimizer: Any) -> tuple[int, float]:
    """(steps done, best validation) after putting the checkpoint's weights, average and optimizer state back."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "checkpoint.safetensors")
    for name, parameter in average.named_parameters():
        known = tensors.get(f"average.{name}", tensors.get(f"weight.{name}"))
        if known is not None:
            parameter.data.copy_(known)
    for name, parameter in network.named_parameters():
        if f"weight.{name}" in tensors:
            parameter.data.copy_(tensors[f"weight.{name}"])
            state = {
                key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors
            }
            if state:
                optimizer.state[parameter] = {
                    k: v if k == "step" and not v.is_cuda and parameter.is_cpu else v.to(parameter.device)
                    for k, v in state.items()
                }
    for one in (network, average):
        one.centre.copy_(tensors["buffer.centre"])
        one.spread.copy_(tensors["buffer.spread"])
    done = json.loads((folder / "checkpoint.json").read_text())
    return done["step"], done["best"]


def save_model(network: Network, folder: Path) -> None:
    """Write a plain LLaVA, and the dual encoder with its tokenizer in the folder `clip`."""
    from copy import deepcopy

    saved = deepcopy(network).cpu()
    saved.fold_scale()
    saved.model.save_pretrained(folder)
    saved.clip.save_pretrained(folder / "clip")
    network.packer.words.save_pretrained(folder / "clip")


def prepare(args: argparse.Namespace) -> tuple[Network, TrainingSet, list[tuple[Tensor, list[Question]]]]:
    """The network, the training pictures, and validation scenes (their pixels and questions); writes the processor."""
    splits = read_splits(args.captions)
    words = build_processor(word_list(splits["train"].values()), size=SIZE, patch=PATCH).tokenizer
    layers = [int(layer) for layer in args.tower_layers.split(",")]
    model, processor = build_model(args.tower, layers, args.llm, words, args.width, args.depth)
    processor.save_pretrained(args.out)
    plan = Plan(args.batch, args.align_steps, args.hint_steps, args.patterns)
    train = TrainingSet(args.photos, splits["train"], args.seed, plan)
    scenes = [
        (pixels_of(scene, train.photographs), asked)
        for scene, asked in unseen_scenes(splits["dev"], train.counts, args.validation_scenes, seed=1)
    ]
    clip = build_dual_encoder(model.model.vision_tower, words)
    return Network(model, clip, Packer(processor, words)), train, scenes


def batches(args: argparse.Namespace, train: TrainingSet, packer: Packer, done: int) -> Iterator[dict[str, Tensor]]:
    """The batches from step `done` to the last."""
    on_gpu = torch.cuda.is_available()
    return iter(
        torch.utils.data.DataLoader(
            train,
            batch_size=args.batch,
            sampler=range(done * args.batch, args.steps * args.batch),
            num_workers=args.workers,
            collate_fn=packer,
            pin_memory=on_gpu,
            prefetch_factor=4 if args.workers else None,
        )
    )


def take_step(
    network: Network, optimizer: Any, packed: dict[str, Tensor], args: argparse.Namespace, step: int
) -> Tensor:
    """(2,) the losses of the answers and of the text tower, after one step of the optimizer."""
    device, aligning = network.prefix.device, step < args.align_steps
    part = min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
    for group in optimizer.param_groups:
        frozen = aligning and group["name"] == "llm" and not args.depth
        group["lr"] = 0.0 if frozen else group["rate"] * part
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        features = network.patch_features(packed["pixels"])
        loss = answer_loss(network, network.image_tokens(features), packed, args.smoothing)
        found = relevance_loss(network, features, packed) if not aligning else loss.new_zeros(())
    (loss + found).backward()
    for group in optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return torch.stack([loss.detach(), found.detach()])


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the loader forks
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    started = time.monotonic()

    def log(*what: object) -> None:
        print(f"[{time.monotonic() - started:6.1f} s]", *what, flush=True)

    try:
        network, train, scenes = prepare(args)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    network.to(device)
    size, text_size = (
        sum(p.numel() for p in m.parameters()) / 1e6 for m in (network.model.model.language_model, network.clip)
    )
    log(f"LLM {size:.1f} M, text tower {text_size:.1f} M, vocabulary {len(network.packer.tokenizer)}")
    network.fit_scale(network.patch_features(torch.stack([train[i].pixels for i in range(2 * args.batch)]).to(device)))
    optimizer = torch.optim.AdamW(parameter_groups(network, args.lr), betas=(0.9, 0.98), fused=True)
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(args.average))
    average: Any = averaged.module
    done, best = 0, 0.0
    if (args.out / "checkpoint.json").exists():
        done, best = load_checkpoint(args.out, network, average, optimizer)
        averaged.n_averaged.fill_(done)
        log("goes on from step", done)
    if device.type == "cuda":
        for layer in network.model.model.language_model.layers:
            layer.compile()
    loader, history, saved = batches(args, train, network.packer, done), [], time.monotonic()
    for step in range(done, args.steps):
        packed = {name: value.to(device, non_blocking=True) for name, value in next(loader).items()}
        history.append(take_step(network, optimizer, packed, args, step))
        averaged.update_parameters(network)
        last = step + 1 == args.steps
        if step in (4, 19, 99) or (step + 1) % 250 == 0 or last:
            recent = torch.stack(history[-100:]).mean(0).tolist()
            log(f"step {step + 1}: answers {recent[0]:.4f}, relevance {recent[1]:.4f}")
        if (step + 1) % args.validate_every == 0 or last:
            share = validate(average, scenes)
            mean = score(share)
            log(f"validation {100 * mean:.1f}:", ", ".join(f"{k} {100 * v:.1f}" for k, v in sorted(share.items())))
            if mean > best and step >= args.align_steps:
                best = mean
                save_model(average, args.out)
        if time.monotonic() - saved > args.checkpoint_seconds or last:
            save_checkpoint(args.out, network, average, optimizer, step + 1, best)
            saved = time.monotonic()
    log(f"best validation {100 * best:.1f}; the model is in {args.out}")


if __name__ == "__main__":
    main()
