"""Pruning on real-size models with random weights, on a GPU: checks of its outputs, and its memory.

`python benchmarks/families.py [--models llava-1.5-7b ...]`. For each model, in bf16 with sdpa: the logits of the prompt
with all tokens kept against the plain model's, bit for bit (those of later steps are printed only: the plain model
does not repeat its own on a GPU); the lengths of the KV cache against what the budget says; the same prompt twice in a
batch; peak memory of `generate` above the weights, with all tokens and with the paper's budget; and seconds
of eager `generate`, for what they are worth.
"""

import argparse
import json
import time

import torch
import transformers
from subjects import KEEP, PUBLISHED, TEXT_TOKENS, free_memory

from vlprune import Script, attach
from vlprune.measure import kv_bytes, kv_cache_bytes
from vlprune.measure.architectures import get_architecture

OPTIONS = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}


def run_generate(model, inputs):
    """(output, peak GiB, seconds) of `generate` with eight new tokens."""
    free_memory()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    output = model.generate(**inputs, max_new_tokens=8, **OPTIONS)
    torch.cuda.synchronize()
    return output, (torch.cuda.max_memory_allocated() - before) / 2**30, time.perf_counter() - start


def check_model(name: str) -> dict:
    """Check and measure one model; returns the figures."""
    one = get_architecture(name)
    torch.manual_seed(0)
    model = one.build("cuda")
    inputs = one.inputs(model, TEXT_TOKENS)
    with torch.no_grad():
        model.generate(**inputs, max_new_tokens=1, do_sample=False)  # warms up
        plain, peak_all, seconds_all = run_generate(model, inputs)
        again, _, _ = run_generate(model, inputs)
        with attach(model, Script(keep=1.0), cache_bytes=0):
            kept, _, _ = run_generate(model, inputs)
        same = torch.equal(kept.logits[0], plain.logits[0])
        repeats = all(torch.equal(a, b) for a, b in zip(again.logits, plain.logits))
        held_all = kv_cache_bytes(plain.past_key_values)
        del kept, plain, again
        with attach(model, Script(keep=KEEP[name]), cache_bytes=0) as pruner:
            model.generate(**inputs, max_new_tokens=1, do_sample=False)
            pruned, peak, seconds = run_generate(model, inputs)
            record = pruner.last
            tokens = TEXT_TOKENS + record.after + record.structure[1]
            lengths = {layer.keys.shape[2] for layer in pruned.past_key_values.layers}
            right = lengths == {tokens + 7} and kv_cache_bytes(pruned.past_key_values) == kv_bytes(model, tokens + 7)
            held = kv_cache_bytes(pruned.past_key_values)
            del pruned
            model.generate(**one.inputs(model, TEXT_TOKENS, batch=2), max_new_tokens=2, do_sample=False)
            first, second = pruner.records
            twice = torch.equal(first.kept, second.kept)
    return {
        "model": name,
        "visual": one.visual,
        "before": record.before,
        "after": record.after,
        "structure": record.structure,
        "prompt_logits_same_bits": same,
        "plain_repeats_itself": repeats,
        "kv_as_computed": right,
        "batch_of_two_alike": twice,
        "kv_mib": [held_all / 2**20, held / 2**20],
        "peak_gib_over_weights": [peak_all, peak],
        "generate_ms": [seconds_all * 1e3, seconds * 1e3],
        "selection_ms": record.seconds * 1e3,
    }


def print_figures(figures: dict) -> None:
    """One line about one model."""
    same, repeats = figures["prompt_logits_same_bits"], figures["plain_repeats_itself"]
    (kv_all, kv), (peak_all, peak) = figures["kv_mib"], figures["peak_gib_over_weights"]
    ms_all, ms = figures["generate_ms"]
    print(
        f"{figures['model']:19} {figures['before']:6} -> {figures['after']:5} (+{figures['structure'][1]:2})  "
        f"prompt's logits {'same bits' if same else 'DIFFERENT'} (plain repeats itself: {'yes' if repeats else 'no'})  "
        f"KV {'as computed' if figures['kv_as_computed'] else 'WRONG'} {kv_all:7.1f} -> {kv:6.1f} MiB  "
        f"batch of two {'alike' if figures['batch_of_two_alike'] else 'NOT ALIKE'}  "
        f"peak {peak_all:5.2f} -> {peak:5.2f} GiB  generate {ms_all:5.0f} -> {ms:5.0f} ms  "
        f"selection {figures['selection_ms']:.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=PUBLISHED, choices=PUBLISHED)
    parser.add_argument("--json", help="write the figures there too")
    args = parser.parse_args()
    device = torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{device}, {versions}, bf16, sdpa, {TEXT_TOKENS} text tokens")
    found = []
    for name in args.models:
        found.append(check_model(name))
        print_figures(found[-1])
        free_memory()
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": device, "torch": torch.__version__, "models": found}, file, indent=1)


if __name__ == "__main__":
    main()
