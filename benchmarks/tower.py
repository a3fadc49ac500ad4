"""What merging inside the vision tower saves on this machine: `python benchmarks/tower.py [--towers pocket]`.

The tower alone, with and without `CheaperTower(merge=)`, in turn, so that all see the same machine; medians. The pocket
model's tower has its weights, the others have the published sizes and random weights. Operations are by formula, in the
tower's layers; time is that of the whole tower with all its hidden states, as LLaVA asks for them.
"""

import argparse
import platform
import statistics
import time

import torch
from transformers import (
    CLIPVisionConfig,
    Dinov2Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    SiglipVisionConfig,
)

from vlprune import pocket
from vlprune.measure.architectures import CLIP_LARGE_336, SIGLIP_SO400M
from vlprune.vision import CheaperTower
from vlprune.vision.operations import tower_operations

#: Published sizes: the towers of LLaVA-1.5 and of LLaVA-OneVision, and the photo model's.
SIZES = {
    "clip-l-336": CLIPVisionConfig(**CLIP_LARGE_336),
    "siglip-so400m-384": SiglipVisionConfig(**SIGLIP_SO400M, image_size=384),
    "dinov2-small-336": Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=336, patch_size=14
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--towers", nargs="+", default=["pocket", *SIZES], choices=["pocket", *SIZES])
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--merge", type=float, nargs="+", default=[0.1, 0.25, 0.5, 0.75])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, {dtype}, medians of {args.repeats}")
    print(f"{'tower':>18} {'images':>7} {'merge':>6} {'operations':>11} {'time':>10} {'of that without':>16}")
    for name in args.towers:
        model = (pocket.load()[0] if name == "pocket" else random_llava(SIZES[name])).to(args.device, dtype).eval()
        for images in args.images:
            print_rows(name, model, images, [0.0, *args.merge], args.repeats)


def random_llava(tower: object) -> LlavaForConditionalGeneration:
    """A LLaVA with such a tower and next to no LLM."""
    llm = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, vocab_size=64)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=tower, text_config=llm, image_token_id=0))


@torch.no_grad()
def print_rows(name: str, model: LlavaForConditionalGeneration, images: int, merges: list[float], repeats: int) -> None:
    """One line for each share of merged patches; the first is the one that others are compared with."""
    tower, side = model.model.vision_tower, model.config.vision_config.image_size
    pixels = torch.randn(images, 3, side, side, device=model.device, dtype=model.dtype)
    seconds: dict[float, list[float]] = {merge: [] for merge in merges}
    for turn in range(repeats + 2):
        for merge, found in seconds.items():
            with CheaperTower(model, merge=merge):
                start = now(model.device)
                tower(pixels, output_hidden_states=True)
                if turn >= 2:  # the first calls choose kernels
                    found.append(now(model.device) - start)
    for merge, found in seconds.items():
        share = tower_operations(tower, merge) / tower_operations(tower)
        middle, whole = statistics.median(found), statistics.median(seconds[merges[0]])
        print(f"{name:>18} {images:>7} {merge:>6} {share:>11.1%} {1000 * middle:>7.1f} ms {middle / whole:>16.1%}")


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
