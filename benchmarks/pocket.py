"""What pruning saves of one answer of the pocket model, on this machine: `python benchmarks/pocket.py [--keep 64]`.

One question about one drawn scene, asked with all 576 visual tokens and with fewer, five times each, in turn, so that
all see the same machine; medians of the rounds' medians. Prefill is the LLM's first forward; question is what CLIP
does: its text tower reads the question, its projection takes the visual tokens there; selection is everything from
these and the features to the kept indices, also as a share of the prefill with all tokens. The last ratio is prefill
against prefill + question + selection.
"""

import argparse
import platform

import torch

from vlprune import Script, attach, pocket
from vlprune.measure import GenerationCost, Latency, measure_generate

ROUND = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keep", type=int, nargs="+", default=[192, 64, 16])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15, help="of each, five to a round")
    parser.add_argument("--fusion", default=Script().fusion)
    args = parser.parse_args()
    model, processor, clip = pocket.load()
    model.to(args.device)
    clip.to(args.device)
    (scene,) = pocket.scenes("test", 1)
    question = pocket.questions(scene, ["digit"])[0]
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}]
    prompt = processor.apply_chat_template(turn, add_generation_prompt=True)
    inputs = dict(processor(images=pocket.images([scene]), text=prompt, return_tensors="pt").to(args.device))
    clips = {"dual_encoder": (clip, processor.tokenizer), "cache_bytes": 0}
    rounds = max(1, args.repeats // ROUND)
    each = {"repeats": min(ROUND, args.repeats), "warmup": 1, "max_new_tokens": 2}
    runs: dict[int | None, list[GenerationCost]] = {keep: [] for keep in (None, *args.keep)}
    for _ in range(rounds):
        for keep in runs:
            if keep is None:
                runs[keep].append(measure_generate(model, inputs, **each))
                continue
            method = Script(keep=keep, fusion=args.fusion)
            with attach(model, method, processor=processor, query=question.text, **clips) as pruner:
                runs[keep].append(measure_generate(model, inputs, pruner=pruner, **each))
    print_table(runs, args.device, rounds)


def print_table(runs: dict[int | None, list[GenerationCost]], device: str, rounds: int) -> None:
    """The medians of the rounds, one line for each number of tokens; `runs[None]` is with all of them."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32, {rounds} rounds of {ROUND}")
    print("  tokens    vision  question      selection       prefill     faster  with both          KV")
    full = Latency.median([run.latency for run in runs[None]]).prefill
    for found in runs.values():
        clock = Latency.median([run.latency for run in found])
        gain, all_gain = full / clock.prefill, full / (clock.prefill + clock.question + clock.selection)
        print(
            f"{found[0].visual_tokens:>8} {1000 * clock.vision:6.1f} ms {1000 * clock.question:6.1f} ms "
            f"{1000 * clock.selection:6.1f} ms {clock.selection / full:5.1%} {1000 * clock.prefill:7.1f} ms "
            f"{gain:9.1f} x {all_gain:8.1f} x {found[0].kv_bytes / 2**20:7.2f} MiB"
        )


if __name__ == "__main__":
    main()
