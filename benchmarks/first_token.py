"""Where the time to the first token goes: `python benchmarks/first_token.py`. Plain and pruned, eager and CUDA graphs.

A call of `generate` with one new token is split at these places: before vision, vision (tower, projector and pooling),
merge (the model's own glue around it), question, selection, before prefill, prefill, and the first sample. Two times
of each part: the host's, and the device's from reaching its beginning to reaching its end, waits for the host
included. Nothing is waited for in between. Whole and pruned models take turns, in rounds; how much faster is of medians
over all calls, and in brackets of the rounds where it is least and most, for a host may change its speed in between.
The floors are operations and bytes at rates measured here first: vision's, and the LLM's. Published architectures with
random weights in bf16; LLaVA-1.5 and NeXT have CLIP's text tower attached.

On a CPU, where host and device are one, run `--models thin pocket --device cpu --ways eager`.
"""

import argparse
import functools
import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from types import MethodType
from unittest.mock import patch

import torch
from prefill import floor_seconds, measure_rates
from subjects import LLAVAS, PUBLISHED, TEXT_TOKENS, WAYS, Subject, free_memory, load_subject, running
from torch.utils.flop_counter import FlopCounterMode

from vlprune.cli.options import parse_keep

#: Parts of a call by the place that ends them.
PARTS = {
    "vision begins": "before vision",
    "vision ends": "vision",
    "question begins": "merge",
    "question ends": "question",
    "selection begins": "merge",
    "selection ends": "selection",
    "prefill begins": "before prefill",
    "prefill ends": "prefill",
    "first token": "first sample",
}


class Marks:
    """Times at named places of a call, of the host and, by events, of the device; `found` is emptied for the next."""

    def __init__(self, device):
        self.cuda, self.found = device.type == "cuda", []

    def set(self, name):
        event = None
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self.found.append((name, time.perf_counter(), event))

    def parts(self):
        """{part: (host ms, device ms)}; a place that is passed twice ends its part each time."""
        sums = {}
        names = [name for name, _, _ in self.found]
        for i in range(1, len(names)):
            (_, start, first), (name, stop, last) = self.found[i - 1 : i + 1]
            part = PARTS[name]
            if name == "prefill begins" and names[i + 1 : i + 2] != ["prefill ends"]:
                part = "merge"  # a pruner enters the decoder once before, to see what it would get
            host = 1e3 * (stop - start)
            device = first.elapsed_time(last) if self.cuda else host
            known = sums.get(part, (0.0, 0.0))
            sums[part] = known[0] + host, known[1] + device
        return sums


class FirstToken:
    """A streamer that marks the first new token on the host."""

    def __init__(self, marks):
        self.marks, self.prompt = marks, True

    def put(self, value):
        if not self.prompt:
            self.marks.set("first token")
        self.prompt = False

    def end(self):
        pass


def between(marks, name, function):
    """The function, with a mark before and one after it; of a method a method, whose parameters are looked up once."""
    plain = getattr(function, "__func__", function)

    @functools.wraps(plain)  # transformers looks at its parameters
    def marked(*args, **kwargs):
        marks.set(f"{name} begins")
        try:
            return plain(*args, **kwargs)
        finally:
            marks.set(f"{name} ends")

    return marked if plain is function else MethodType(marked, function.__self__)


@contextmanager
def marking(model, marks):
    """Marks at all places of the calls in its `with`."""
    from vlprune.pruning import question, shorten

    decoder, base = model.get_decoder(), model.base_model
    with ExitStack() as stack:
        for name in ("get_image_features", "get_video_features"):
            if hasattr(base, name):
                stack.enter_context(patch.object(base, name, between(marks, "vision", getattr(base, name))))
        finder = question.QuestionFinder
        stack.enter_context(patch.object(finder, "embed", between(marks, "question", finder.embed)))
        stack.enter_context(patch.object(shorten, "choose_tokens", between(marks, "selection", shorten.choose_tokens)))

        def enter(*_):
            marks.set("prefill begins")

        def leave(*_):
            marks.set("prefill ends")

        handles = [decoder.register_forward_pre_hook(enter), model.register_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def time_calls(model, inputs, repeats):
    """[({part: (host ms, device ms)}, ms in all)] of calls that follow three which do not count."""
    calls, marks = [], Marks(model.device)
    wait = torch.cuda.synchronize if marks.cuda else int
    with marking(model, marks):
        for _ in range(repeats + 3):
            marks.found = []
            wait()
            marks.set("call")
            model.generate(**inputs, max_new_tokens=1, do_sample=False, streamer=FirstToken(marks))
            wait()
            calls.append((marks.parts(), 1e3 * (marks.found[-1][1] - marks.found[0][1])))
    return calls[3:]


def medians(calls):
    """{part: (host ms, device ms)} and the whole."""
    names = list(dict.fromkeys(PARTS.values()))
    runs = [parts for parts, _ in calls]
    parts = {name: tuple(median(run.get(name, (0.0, 0.0))[i] for run in runs) for i in (0, 1)) for name in names}
    return parts, median(total for _, total in calls)


def vision_floor(model, inputs, rates):
    """Seconds of the tower's operations, and of its weights read once."""
    base, names = model.base_model, ("pixel_values", "image_sizes", "image_grid")
    given = {name: value for name, value in inputs.items() if name.startswith(names)}
    encode = base.get_image_features
    if "pixel_values_videos" in given:  # whose name differs between versions of transformers
        encode = functools.partial(base.get_video_features, given.pop("pixel_values_videos"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encode(**given)
    decoder = set(model.get_decoder().parameters()) | set(model.lm_head.parameters())
    weights = sum(weight.nbytes for weight in model.parameters() if weight not in decoder)
    return max(counter.get_total_flops() / rates[1], weights / rates[0])


def load(name, device):
    """A subject, its inputs, and what `attach` gets beside the method."""
    if name == "pocket":
        from vlprune import pocket

        model, processor, clip = pocket.load()
        image = pocket.images(pocket.scenes("validation", 1))[0]
        text = "USER: <image> what color is the star? ASSISTANT:"
        inputs = processor(images=image, text=text, return_tensors="pt").to(device)
        options = {"processor": processor, "dual_encoder": clip}
        return Subject(None, model.to(device), 64, None), inputs, options
    subject = load_subject(name, device)
    return subject, subject.prompts([TEXT_TOKENS]), subject.attaching()


def takes_turns(subject, budgets):
    """{title: (method, its budget)}, the whole model first, then each budget's methods; without budgets the model's."""
    found = {}
    for keep in budgets or [subject.keep]:
        for title, method in replace(subject, keep=keep).methods.items():
            title = title if method is None or len(budgets or []) < 2 else f"{title} {keep}"
            found[title] = method, None if method is None else keep
    return found


def measure_model(name, args, rates):
    """Measure and print one model; returns the figures."""
    subject, inputs, options = load(name, args.device)
    model, methods = subject.model, takes_turns(subject, args.keep)
    budgets = ", ".join(str(keep) for keep in args.keep or [subject.keep])
    floors = {"vision": 1e3 * vision_floor(model, inputs, rates)}
    print(f"\n{name}, keep={budgets}: ms, host / device; vision's floor {floors['vision']:.2f}")
    names, rows, whole, width = list(dict.fromkeys(PARTS.values())), [], {}, max(map(len, methods))
    print(
        f"  {'':{width}} {'LLM runs':8} "
        + " ".join(f"{part:>15}" for part in names)
        + "   first token  faster [of rounds]  floor of prefill"
    )
    for way in args.ways:
        calls, tokens = {title: [] for title in methods}, {}
        for _ in range(args.rounds):  # in turns: a host that slows down slows all of them
            for title, (method, _) in methods.items():
                tokens[title] = inputs["input_ids"].shape[1]
                with running(model, method, way, **options) as pruner:
                    calls[title].append(time_calls(model, inputs, args.repeats))
                    if pruner is not None:
                        tokens[title] -= sum(record.before - record.after for record in pruner.records)
        for title, timed in calls.items():
            parts, total = medians([call for one_round in timed for call in one_round])
            limit = 1e3 * max(floor_seconds(model, tokens[title], rates))
            whole.setdefault(way, (total, timed))
            faster = [medians(all_tokens)[1] / medians(one)[1] for all_tokens, one in zip(whole[way][1], timed)]
            told = " ".join(f"{host:7.2f}/{device:7.2f}" for host, device in parts.values())
            ratio = f"{whole[way][0] / total:.2f}x [{min(faster):.2f}, {max(faster):.2f}]"
            print(f"  {title:{width}} {way:8} {told} {total:13.2f} {ratio:>19} {limit:17.2f}", flush=True)
            figures = {"parts": parts, "first_token": total, "faster_by_round": faster, "prefill_floor": limit}
            rows.append({"method": title, "keep": str(methods[title][1]), "way": way, **figures})
    return {"model": name, "floors": floors, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=LLAVAS, choices=[*PUBLISHED, "pocket", "thin"])
    parser.add_argument("--ways", nargs="+", default=["eager", "graphs"], choices=list(WAYS))
    parser.add_argument(
        "--keep", nargs="+", type=parse_keep, help="budgets in place of the model's: 288, 84/frame, 0.5"
    )
    parser.add_argument("--repeats", type=int, default=7, help="calls of each in a round")
    parser.add_argument("--rounds", type=int, default=3, help="in which whole and pruned models take turns")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="write the figures there too")
    args = parser.parse_args()
    rates = measure_rates(args.device, 8192 if args.device != "cpu" else 512)
    print(f"copies {rates[0] / 1e12:.3f} TB/s (read and written), multiplies {rates[1] / 1e12:.2f} TFLOP/s")
    found = []
    for name in args.models:
        found.append(measure_model(name, args, rates))
        free_memory()
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"rates": rates, "models": found}, file, indent=1)


if __name__ == "__main__":
    main()
