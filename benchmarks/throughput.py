"""Prompts and images a second, the largest batch that fits, and decoding at long contexts, with and without pruning.

`python benchmarks/throughput.py`: whole calls of `generate` with `--new` tokens, at several batch sizes, for prompts of
different lengths, padded on the left. Published architectures with random weights in bf16; LLaVA-1.5 and NeXT have
CLIP's text tower attached, which embeds another question for each prompt; in the others the LLM embeds it. All methods
take turns in rounds; medians over all rounds, and their ratios. What runs out of memory is said and left out.

On a GPU then the largest batch for `--limits` of memory, in eager transformers: *computed* from the peaks of torch's
allocator at two batch sizes, by the line through them; then tried, with the allocator limited to so much (what CUDA
takes for itself is not in it), up to 2,048 prompts. Beside it the number of prompts whose key-value caches fit beside
the weights, computed from the bytes of one.

`--decode` measures decoding at long contexts in place of all that: eight images a prompt, or a video of 64 frames.
Tables in Markdown on stdout, progress on stderr, all figures in `--out`. On a CPU try
`--models thin --device cpu --ways eager --batches 1 4`.
"""

import argparse
import json
import sys
import time
import warnings
from functools import partial
from statistics import median

import torch
from subjects import PUBLISHED, TEXT_TOKENS, WAYS, free_memory, load_subject, running

from vlprune.measure import kv_bytes
from vlprune.measure.efficiency import describe_machine
from vlprune.measure.latency import Clock

GIB = 2**30
MODELS = ["llava-1.5-7b", "llava-next-7b", "qwen2.5-vl-7b", "internvl3-8b"]
#: Images or videos of a long prompt.
LONG = {"llava-1.5-7b": 8, "llava-next-7b": 8, "llava-video-7b": 1}
#: Lower of the two batch sizes whose peaks are measured, the upper is twice as large; the next where memory runs out.
LOWER = (16, 8, 4, 2, 1)
#: Shares of the computed batch that are tried, until one runs.
TRIED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
#: A larger computed batch is not tried: it would take minutes.
LARGEST_TRIED = 2048


def say(text):
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def mixed_lengths(batch):
    """Words of each prompt: from a quarter of `TEXT_TOKENS` to seven quarters, which on average are as many."""
    shares = torch.linspace(0.25, 1.75, batch) if batch > 1 else torch.ones(1)
    return (TEXT_TOKENS * shares).round().int().tolist()


def generate(model, inputs, new):
    """So many new tokens for each prompt."""
    return model.generate(**inputs, max_new_tokens=new, min_new_tokens=new, do_sample=False)


def time_generate(model, inputs, new, pruner=None):
    """Seconds of a call."""
    wait = torch.cuda.synchronize if model.device.type == "cuda" else int
    wait()
    start = time.perf_counter()
    generate(model, inputs, new)
    wait()
    return time.perf_counter() - start


def time_decoding(model, inputs, new, pruner=None):
    """Seconds of one decoding step."""
    with Clock(model, pruner) as clock:
        generate(model, inputs, new)
    return clock.latency.decode / (new - 1)


def count_kv_bytes(model, inputs, new):
    """Bytes of the keys and values of all tokens that have been in the LLM at the end of a call, padding included.

    By formula from the prompt that entered it: to ask for the cache itself would copy that of a graph.
    """
    with Clock(model) as clock:
        generate(model, inputs, new)
    rows, tokens = clock.prompt
    return kv_bytes(model, tokens + new - 1, batch=rows)


class Attempts:
    """Calls that may fail for want of memory, or because graphs do not cover them; `failures` are sentences."""

    def __init__(self):
        self.failures = []

    def run(self, what, function):
        """What the function returns, or None if it fails."""
        found = reason = None
        try:
            found = function()
        except torch.OutOfMemoryError:
            reason = "out of memory"
        except (RuntimeError, UserWarning) as error:  # a batch too large for a kernel; what `main` makes an error
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            reason = "out of memory" if "out of memory" in reason else reason.rstrip(".")
        free_memory()  # here, where nothing holds the frames of the error any more
        if reason is not None:
            self.failures.append(f"{what}: {reason}")
            say(f"  {self.failures[-1]}")
        return found


def take_turns(subject, way, inputs, measure, args, attempts):
    """{title: (figures of all rounds, bytes of keys and values)}: each round gives each method its turn.

    `measure(pruner=)` gives one figure. A method that fails has no more turns, and is left out.
    """
    model, rows = subject.model, len(inputs["input_ids"])
    found, held = {title: [] for title in subject.methods}, {}

    def turn(title):
        with running(model, subject.methods[title], way, **subject.attaching(rows)) as pruner:
            held[title] = count_kv_bytes(model, inputs, args.new)  # captures; neither this call nor the next is timed
            generate(model, inputs, args.new)
            return [measure(pruner=pruner) for _ in range(args.repeats)]

    for number in range(args.rounds):
        for title in list(found):
            what = f"{subject.name}, {way}, batch {rows}, {title}"
            say(f"  round {number + 1} of {args.rounds}: {what}")
            figures = attempts.run(what, partial(turn, title))
            if figures is None:
                del found[title]
            else:
                found[title] += figures
    return {title: (figures, held[title]) for title, figures in found.items()}


def measure_throughput(subject, args, attempts):
    """A row for each way, batch size and method."""
    rows = []
    for way in args.ways:
        for batch in args.batches:
            inputs = subject.prompts(mixed_lengths(batch), args.images)
            measure = partial(time_generate, subject.model, inputs, args.new)
            found = take_turns(subject, way, inputs, measure, args, attempts)
            whole = median(found["all tokens"][0]) if "all tokens" in found else None
            for title, (seconds, kv) in found.items():
                middle = median(seconds)
                row = {"model": subject.name, "way": way, "batch": batch, "method": title, "seconds": seconds}
                row["prompts_per_second"] = batch / middle
                row["images_per_second"] = batch * args.images / middle
                row["ratio"] = whole / middle if whole is not None else None
                row["kv_bytes"] = kv
                rows.append(row)
    return rows


def largest_batch(peaks, limit):
    """The largest batch whose peak is at most `limit` bytes, by the line through peaks {batch: bytes} of two sizes.

    Returns it and the bytes by which the peak grows with each prompt.
    """
    (low, small), (high, large) = sorted(peaks.items())
    growth = (large - small) / (high - low)
    if growth <= 0:
        raise ValueError(f"peaks={peaks}: memory does not grow with the batch.")
    return max(0, int((limit - small) / growth + low)), growth


def tower_bytes(subject):
    """Bytes of the text tower, which a whole model does without."""
    return sum(weight.nbytes for weight in subject.text_tower[0].parameters()) if subject.text_tower else 0


def measure_peak(subject, method, batch, new):
    """(Peak bytes of a call, weights and inputs included; bytes of keys and values of one prompt)."""
    inputs = subject.prompts(mixed_lengths(batch))
    with running(subject.model, method, "eager", **subject.attaching(batch)):
        free_memory()
        torch.cuda.reset_peak_memory_stats()
        kv = count_kv_bytes(subject.model, inputs, new)
        spare = tower_bytes(subject) if method is None else 0
        return torch.cuda.max_memory_allocated() - spare, kv / batch


def try_batch(subject, method, batch, limit, new):
    """Run a batch with no more than `limit` bytes for torch, and return it; raises where that does not suffice."""
    spare = tower_bytes(subject) if method is None else 0
    free_memory()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (limit + spare) / device_bytes()))
    try:
        measure_peak(subject, method, batch, new)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return batch


def device_bytes():
    """All memory of the GPU."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


def measure_fit(subject, args, attempts):
    """A row for each limit of memory and method; on a GPU."""
    rows = []
    weights = sum(weight.nbytes for weight in subject.model.parameters())
    for title, method in subject.methods.items():
        what = f"{subject.name}, largest batch, {title}"
        say(f"  {what}")
        peaks, kv = measure_peaks(subject, method, what, args, attempts)
        if not peaks:
            continue
        needed = weights + (tower_bytes(subject) if method is not None else 0)
        for limit in args.limits:
            computed, growth = largest_batch(peaks, limit * GIB)
            ran = None
            for batch in dict.fromkeys(int(share * computed) for share in TRIED):
                if ran is None and 0 < batch <= LARGEST_TRIED and limit * GIB <= device_bytes():
                    call = partial(try_batch, subject, method, batch, limit * GIB, args.new)
                    ran = Attempts().run(f"{what}, {batch} prompts in {limit} GiB", call)  # a smaller one may
            caches = max(0, int((limit * GIB - needed) / kv))
            row = {"model": subject.name, "method": title, "limit_gib": limit, "peak_bytes": peaks}
            row |= {"growth_bytes": growth, "kv_bytes_per_prompt": kv}
            rows.append(row | {"computed_batch": computed, "batch_that_ran": ran, "caches_beside_weights": caches})
    return rows


def measure_peaks(subject, method, what, args, attempts):
    """Peaks {batch: bytes} of the largest two of the sizes that run, and bytes of a prompt's keys and values.

    The peaks are {} where no two sizes run.
    """
    for low in LOWER:
        peaks, kv = {}, 0.0
        for batch in (low, 2 * low):
            call = partial(measure_peak, subject, method, batch, args.new)
            measured = attempts.run(f"{what}, peak at {batch} prompts", call)
            if measured is None:
                break
            peaks[batch], kv = measured
        if len(peaks) == 2:
            return peaks, kv
    return {}, 0.0


def measure_decoding(subject, args, attempts):
    """A row for each way and method, for one long prompt."""
    rows = []
    images = LONG.get(subject.name, 8)
    inputs = subject.prompts([TEXT_TOKENS], images)
    for way in args.ways:
        measure = partial(time_decoding, subject.model, inputs, args.new)
        found = take_turns(subject, way, inputs, measure, args, attempts)
        whole = median(found["all tokens"][0]) if "all tokens" in found else None
        for title, (seconds, kv) in found.items():
            row = {"model": subject.name, "prompt": f"{images} x {subject.architecture.visual}", "way": way}
            row |= {"method": title, "seconds_per_token": seconds, "kv_bytes": kv}
            rows.append(row | {"ratio": whole / median(seconds) if whole is not None else None})
    return rows


def ratio(value):
    """How many times as fast as with all tokens, where these have been measured."""
    return "–" if value is None else f"{value:.2f}×"


def table(text, numbers, rows):
    """Print a table in Markdown with columns of text and then of numbers."""
    print("\n| " + " | ".join(text + numbers) + " |")
    print("| " + " | ".join([":---"] * len(text) + ["---:"] * len(numbers)) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_throughput(rows):
    table(
        ["model", "LLM runs", "method"],
        ["batch", "s a call", "prompts/s", "images/s", "faster", "KV cache, MiB"],
        [
            [row["model"], row["way"], row["method"], str(row["batch"]), f"{median(row['seconds']):.3f}",
             f"{row['prompts_per_second']:.2f}", f"{row['images_per_second']:.2f}", ratio(row["ratio"]),
             f"{row['kv_bytes'] / 2**20:,.1f}"]
            for row in rows
        ],
    )  # fmt: skip


def print_fit(rows):
    table(
        ["model", "method"],
        ["memory, GiB", "peak, GiB (batch)", "growth a prompt, MiB", "KV a prompt, MiB",
         "largest batch, computed", "ran in that memory", "caches beside the weights, computed"],
        [
            [row["model"], row["method"], str(row["limit_gib"]),
             ", ".join(f"{peak / GIB:.1f} ({batch})" for batch, peak in row["peak_bytes"].items()),
             f"{row['growth_bytes'] / 2**20:,.1f}", f"{row['kv_bytes_per_prompt'] / 2**20:,.1f}",
             f"{row['computed_batch']:,}", "–" if row["batch_that_ran"] is None else f"{row['batch_that_ran']:,}",
             f"{row['caches_beside_weights']:,}"]
            for row in rows
        ],
    )  # fmt: skip


def print_decoding(rows):
    table(
        ["model", "prompt", "LLM runs", "method"],
        ["ms a token", "faster", "KV cache, MiB"],
        [
            [row["model"], row["prompt"], row["way"], row["method"], f"{1e3 * median(row['seconds_per_token']):.2f}",
             ratio(row["ratio"]), f"{row['kv_bytes'] / 2**20:,.1f}"]
            for row in rows
        ],
    )  # fmt: skip


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", choices=[*PUBLISHED, "thin"], help="four; with --decode the LLaVAs")
    parser.add_argument("--ways", nargs="+", default=["eager", "graphs"], choices=list(WAYS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8, 32], help="none: only the largest batch")
    parser.add_argument("--images", type=int, default=1, help="images, or videos, of each prompt")
    parser.add_argument("--new", type=int, default=16, help="new tokens of each prompt")
    parser.add_argument("--limits", nargs="*", type=int, default=[24, 80, 139], help="GiB; none: no largest batch")
    parser.add_argument("--decode", action="store_true", help="decoding at long contexts, and nothing else")
    parser.add_argument("--rounds", type=int, default=3, help="in which whole and pruned models take turns")
    parser.add_argument("--repeats", type=int, default=2, help="calls of each in a round")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", help="write the figures there too, as JSON")
    args = parser.parse_args()
    least = 2 if args.decode else 1
    if min([args.new - least + 1, args.images, args.rounds, args.repeats, *args.batches, *args.limits]) < 1:
        parser.error(f"--new must be at least {least}, all other numbers at least 1.")
    if args.models is None:
        args.models = list(LONG) if args.decode else MODELS
    return args


def main():
    args = parse_arguments()
    warnings.filterwarnings("error", message="vlprune: without CUDA graphs")  # figures must be what they say
    warnings.filterwarnings("ignore", message="vlprune: .* compares question and tokens by the LLM")
    attempts, found = Attempts(), {"settings": vars(args), "throughput": [], "fit": [], "decode": []}
    for name in args.models:
        say(name)
        subject = load_subject(name, args.device)
        found["machine"] = describe_machine(subject.model)
        if args.decode:
            found["decode"] += measure_decoding(subject, args, attempts)
        else:
            found["throughput"] += measure_throughput(subject, args, attempts)
            if args.limits and subject.model.device.type == "cuda":
                found["fit"] += measure_fit(subject, args, attempts)
        del subject
        free_memory()
        found["failures"] = attempts.failures
        if args.out:
            with open(args.out, "w") as file:
                json.dump(found, file, indent=1)
    print(", ".join(f"{name} {value}" for name, value in found["machine"].items()) + f"; {args.new} new tokens")
    for part, show in (("throughput", print_throughput), ("fit", print_fit), ("decode", print_decoding)):
        if found[part]:
            show(found[part])
    if args.limits and not args.decode and torch.device(args.device).type != "cuda":
        print("\nThe largest batch is measured on a GPU only: torch does not count what a CPU's memory holds.")
    for failure in attempts.failures:
        print(f"\nDid not run: {failure}.")


if __name__ == "__main__":
    main()
