"""A long run of mixed calls on attached models: are results, memory and open files at the end as at the beginning?

    python benchmarks/soak.py --calls 10000                    # the pocket model, and a tiny model of every family
    python benchmarks/soak.py --calls 2000 --threads 8         # the lock around an attached model
    python benchmarks/soak.py --device cuda --cuda-graphs --seconds 600 --calls 1000000   # on a GPU, one of 7B size too
    python benchmarks/soak.py --device cuda --cuda-graphs --seconds 600 --calls 1000000 --plain   # the control
    python benchmarks/soak.py --repeats 1000                   # same inputs, same tokens

All models are attached at once, in one process. Calls are drawn from a seed: one question or a batch, one or two
images, a video, a text alone, two turns on one cache, direct calls of the model, and calls that fail; images come again
and are then in the feature cache. Each result is compared with the one that the same call had in a fresh process before
the soak. Memory is sampled all along; slopes are those of lines through the samples of the last three quarters and of
the second half. The process's memory includes what has been freed and malloc keeps to use again, in an arena for each
thread: what is really held is what malloc counts as in use, which is sampled too, and what is left after malloc_trim.
Memory and open files are printed; results, hooks and attributes decide the exit code. At the end the pruners are
detached, and every model must be what it was.
`--plain` makes such calls, but none that fail, of the models without pruners: what grows there too is not ours.
`--repeats` asks the same again, alone and beside two others in a batch, and in plain torch, and compares tokens. It
then asks about a fifth as many drawn scenes here and on another device: on a CPU, or, from a CPU, in float64. Where
tokens differ, it names the choice in which the two part, and the values of the two tokens, which must be a tie.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlprune import FastV, Script, ScriptPlus, VisionZip, attach, pocket
from vlprune.cuda_graphs import GraphedModel
from vlprune.cuda_graphs.capture import Capturing
from vlprune.record import Record

sys.path.insert(0, str(Path(__file__).parent))
from process_memory import in_use, resident, told, trimmed

METHODS = {"script": Script(keep=16), "script_plus": ScriptPlus(keep=16), "visionzip": VisionZip(keep=16)}
METHODS |= {"fastv": FastV(keep=64)}
QUESTIONS = [
    "is there a red star?",
    "what color is the circle?",
    "how many squares are there?",
    "is there a blue circle?",
]
TIE = 1e-5  #: of the largest value: as far as rounding on another device may bring two tokens' values
TOGETHER = {"llava_onevision": (2, 3, 6)}  # its images that are not cut into tiles, as those of a row with several are
SEVEN_B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}


class Bed:
    """A model, how it is attached, and calls of it by number; each is drawn from its number alone."""

    kinds = ("one", "one", "batch", "two images", "text", "turns", "forward", "error")

    def __init__(self, model: Any, method: Any, **options: Any) -> None:
        self.model, self.method, self.options = model, method, options

    def inputs(self, draw: random.Random, rows: int, images: int, look: str = "image") -> dict[str, Any]:
        raise NotImplementedError

    def longer(self, ids: torch.Tensor, draw: random.Random) -> dict[str, Any]:
        """The prompt of a second turn, from what was said until then (1, S)."""
        raise NotImplementedError

    def __call__(self, number: int) -> tuple[str, list[Any]]:
        """The kind of the call, and what came out of it: tokens, or an error's kind and words."""
        draw = random.Random(number)
        kind = draw.choice(self.kinds)
        with torch.no_grad():
            return kind, getattr(self, "_" + kind.replace(" ", "_"))(draw)

    def _generate(self, inputs: Any, **more: Any) -> Any:
        out = self.model.generate(**inputs, max_new_tokens=2, do_sample=False, **more)
        return (out if isinstance(out, torch.Tensor) else out.sequences)[:, inputs["input_ids"].shape[1] :].tolist()

    def _one(self, draw: random.Random) -> Any:
        return self._generate(self.inputs(draw, 1, 1))

    def _batch(self, draw: random.Random) -> Any:
        return self._generate(self.inputs(draw, draw.randint(2, 3), 1))

    def _two_images(self, draw: random.Random) -> Any:
        return self._generate(self.inputs(draw, 1, 2))

    def _text(self, draw: random.Random) -> Any:
        return self._generate(self.inputs(draw, 1, 0))

    def _turns(self, draw: random.Random) -> Any:
        inputs = self.inputs(draw, 1, 1)
        first = self.model.generate(**inputs, max_new_tokens=2, do_sample=False, return_dict_in_generate=True)
        return self._generate({**self.longer(first.sequences, draw), "past_key_values": first.past_key_values})

    def _video(self, draw: random.Random) -> Any:
        return self._generate(self.inputs(draw, 1, 1, "video"))

    def _forward(self, draw: random.Random) -> Any:
        return self.model(**self.inputs(draw, 1, 1)).logits[0, -1].topk(3).indices.tolist()

    def _error(self, draw: random.Random) -> Any:
        inputs, kind = self.inputs(draw, 1, 1), draw.choice(["embeddings", "logits", "shape"])
        try:
            if kind == "embeddings":
                given = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
                self.model(inputs_embeds=torch.zeros(1, 3, 8, device=self.model.device), **given)
            elif kind == "shape":
                self._generate({**inputs, "attention_mask": inputs["attention_mask"][:, 1:]})
            else:
                self._generate(inputs, logits_processor=[_explode])
        except (ValueError, RuntimeError, TypeError) as error:
            return [type(error).__name__, str(error)]
        raise AssertionError(f"{kind}: no error came")


def _explode(ids: Any, scores: Any) -> Any:
    raise RuntimeError("on purpose")


class PocketBed(Bed):
    """The pocket model; or, to load a GPU, one with random weights of LLaVA-1.5-7B's size behind the same processor."""

    def __init__(self, method: str, device: str, large: bool = False) -> None:
        model, self.processor, clip = pocket.load()
        if large:
            model = enlarged(model, device)
        encoder = {"dual_encoder": clip.to(device)} if method.startswith("script") else {}
        super().__init__(model.to(device), METHODS[method], processor=self.processor, **encoder)

    def inputs(self, draw: random.Random, rows: int, images: int, look: str = "image") -> dict[str, Any]:
        picture = np.random.default_rng(draw.randrange(40)).integers(0, 256, (192, 192, 3), dtype=np.uint8)
        texts = [f"USER: {'<image> ' * images}{draw.choice(QUESTIONS)} ASSISTANT:" for _ in range(rows)]
        pictures = [picture] * (rows * images) or None
        return dict(
            self.processor(images=pictures, text=texts, padding=True, return_tensors="pt").to(self.model.device)
        )

    def longer(self, ids: torch.Tensor, draw: random.Random) -> dict[str, Any]:
        ids = torch.cat([ids, ids[:, -6:-2]], dim=1)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def enlarged(model: Any, device: str) -> Any:
    """The pocket model's tower before an LLM of 7B. In float32: a rounding more would change a random model's words."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig.from_pretrained(pocket.path())
    config.text_config.update({**SEVEN_B, "num_key_value_heads": 32, "head_dim": 128})
    torch.manual_seed(0)
    with torch.device(device):
        large = LlavaForConditionalGeneration._from_config(config, dtype=torch.float32).eval()
    large.model.vision_tower = model.model.vision_tower
    return large


class FamilyBed(Bed):
    """A tiny model of a family's real class, with random weights: the case that the tests of families have for it."""

    def __init__(self, case: Any, device: str) -> None:
        self.case = case
        self.kinds = (*Bed.kinds, "video", "video") if "video" in case.layouts else Bed.kinds
        super().__init__(case.model().to(device), Script(keep=5))

    def inputs(self, draw: random.Random, rows: int, images: int, look: str = "image") -> dict[str, Any]:
        show, whole = getattr(self.case, look), TOGETHER.get(self.case.name, ())
        numbers = [n for n in range(8) if look == "video" or not whole or (n in whole) == (images > 1)]
        seen = [[show(draw.choice(numbers)) for _ in range(images)] for _ in range(rows)]
        samples = [self.case.sample(draw.randint(1, 4), *shown, draw.randint(3, 6)) for shown in seen]
        given = self.case.batch(samples)
        if not images:  # some hand over pixels of no image
            given = {name: given[name] for name in given if name not in self.case.tensors(samples)}
        return {name: value.to(self.model.device) for name, value in given.items()}

    def longer(self, ids: torch.Tensor, draw: random.Random) -> dict[str, Any]:
        said = self.case.sample(draw.randint(3, 5), first=False).ids
        ids = torch.cat([ids, torch.tensor([said], device=ids.device)], dim=1)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.case.companions(ids.cpu())}
        return {name: value.to(ids.device) for name, value in given.items()}


def family_cases() -> dict[str, Any]:
    """The cases that the tests of families have, by name."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.families import CASES

    return {case.name: case for case in CASES}


def make_beds(names: Iterable[str], device: str) -> dict[str, Bed]:
    """The beds of these names."""
    cases, beds = family_cases(), {}
    for name in names:
        if name == "7b":
            beds[name] = PocketBed("script", device, large=True)
        elif name in METHODS:
            beds[name] = PocketBed(name, device)
        elif name in cases:
            beds[name] = FamilyBed(cases[name], device)
        else:
            raise SystemExit(f"--beds {name}: there are {', '.join(['7b', *METHODS, *cases])}.")
    return beds


def attach_all(beds: dict[str, Bed], given: Any, cache_bytes: int) -> list[Any]:
    """Attach to every model, or with `--plain` only its graphs; on a CPU, tapes take the place of CUDA graphs."""
    if given.cuda_graphs and all(bed.model.device.type == "cpu" for bed in beds.values()):
        from tests.support.tape import capture_on_tape

        Capturing.capture = lambda self: None if self.failure else capture_on_tape
    if given.plain:
        for bed in beds.values():
            bed.kinds = tuple(kind for kind in bed.kinds if kind != "error")
        return [GraphedModel(bed.model) for bed in beds.values()] if given.cuda_graphs else []
    more = {"cuda_graphs": True} if given.cuda_graphs else {}
    return [attach(bed.model, bed.method, cache_bytes=cache_bytes, **bed.options, **more) for bed in beds.values()]


# --- the run ---


def fresh_results(given: Any) -> dict[str, dict[str, Any]]:
    """What the same calls give in a process of their own, each once."""
    words = [sys.executable, __file__, "--only", "--beds", *given.beds, "--device", given.device]
    words += ["--distinct", str(given.distinct)] + ["--cuda-graphs"] * given.cuda_graphs + ["--plain"] * given.plain
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def open_files() -> int:
    """How many files this process holds open."""
    return len(os.listdir("/proc/self/fd"))


def count_hooks(beds: dict[str, Bed]) -> int:
    modules = [module for bed in beds.values() for module in bed.model.modules()]
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in modules)


def attributes(beds: dict[str, Bed]) -> dict[tuple[str, str], set[str]]:
    """The names of what each module holds."""
    return {(name, place): set(vars(m)) for name, bed in beds.items() for place, m in bed.model.named_modules()}


def soak(given: Any) -> int:
    """Run the calls; the number of results that differ, and of what is left on the models."""
    expected = fresh_results(given)  # first: there may not be memory for two processes' models
    beds = make_beds(given.beds, given.device)
    with torch.no_grad():  # whatever transformers itself puts on a model at first use
        for bed in beds.values():
            bed._turns(random.Random(0))
            bed.model(**bed.inputs(random.Random(0), 1, 1), output_hidden_states=True)
            if "video" in bed.kinds:
                bed._video(random.Random(0))
    own, before = count_hooks(beds), attributes(beds)
    pruners = attach_all(beds, given, cache_bytes=2**20)
    kinds: Counter[str] = Counter()
    memory: list[tuple[int, float]] = []
    used: list[tuple[int, float]] = []
    device_memory: list[tuple[int, float]] = []
    wrong, done, lock, begun, opened = 0, 0, threading.Lock(), time.time(), open_files()
    every = 1.0 if given.seconds < float("inf") else 0.0  # seconds between samples
    sampled = begun

    def one(index: int) -> None:
        nonlocal wrong, done, sampled
        if time.time() - begun > given.seconds:
            return
        draw = random.Random(f"{given.seed} {index}")
        name, number = draw.choice(list(beds)), draw.randrange(given.distinct)
        kind, out = beds[name](number)
        with lock:
            kinds[kind] += 1
            done += 1
            if out != expected[name][str(number)]:
                wrong += 1
                print(f"call {index} ({name}, {kind}, {number}): {out}, not {expected[name][str(number)]}", flush=True)
            if time.time() - sampled > every if every else done % max(1, given.calls // 200) == 0:
                sampled = time.time()
                memory.append((done, resident()))
                used.append((done, in_use()))
                if given.device != "cpu":
                    device_memory.append((done, torch.cuda.memory_allocated() / 2**20))

    if given.threads == 1:
        for index in range(given.calls):
            one(index)
            if time.time() - begun > given.seconds:
                break
    else:
        with ThreadPoolExecutor(given.threads) as pool:
            for future in [pool.submit(one, index) for index in range(given.calls)]:
                future.result(600)
    files, hooks, took = open_files(), count_hooks(beds) - own, time.time() - begun
    attached = trimmed()
    held = [one if given.plain else one.cuda_graphs for one in pruners]
    graphs = [one.graph_count for one in held if isinstance(one, GraphedModel)]
    for one in pruners:
        one.__exit__(None, None, None)
    gc.collect()
    left = count_hooks(beds) - own
    changed = [place for place, names in attributes(beds).items() if names != before[place]]
    print(f"{done:,} calls of {len(beds)} models by {given.threads} threads in {took:.0f} s (seed {given.seed})")
    print(f"{wrong} differ from a fresh process; {told(memory, 'memory')}; {opened} to {files} open files")
    print(f"{told(used, 'in use by malloc')}; {attached:.0f} MiB are left of the memory after malloc_trim")
    if device_memory:
        print(told(device_memory, "GPU"))
    if graphs:
        print(f"{sum(graphs)} graphs held at the end, by {sum(map(bool, graphs))} of the models")
        wrong += not any(graphs)
    print(f"{hooks} hooks; after detach {left} left, {len(changed)} modules changed")
    print(", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())))
    return wrong + left + len(changed) + (done == 0)


def repeats(count: int, device: str) -> int:
    """The same prompt so many times, alone and between neighbours, with the fused kernels and without; then devices."""
    from vlprune.selection import use_fused

    wrong = 0
    for name in METHODS:
        bed = PocketBed(name, device)
        with torch.no_grad(), attach(bed.model, bed.method, cache_bytes=0, **bed.options) as pruner:
            batch = bed.inputs(random.Random(5), 3, 1)
            alone = {key: value[:1] for key, value in batch.items()}

            def run(inputs: Any, model: Any = bed.model, pruner: Any = pruner) -> tuple[Any, Any]:
                out = model.generate(**inputs, max_new_tokens=2, do_sample=False)
                return out[0, inputs["input_ids"].shape[1] :].tolist(), pruner.records[0].kept.tolist()

            first, seen = run(alone), Counter()
            for way, inputs, times in (("again", alone, count), ("beside two others", batch, max(1, count // 10))):
                for _ in range(times):
                    seen[way] += 1
                    seen[f"{way}: differ"] += run(inputs) != first
            with use_fused(False):
                seen["in plain torch: differ"] += run(alone) != first
        wrong += sum(number for way, number in seen.items() if "differ" in way)
        print(f"{name}: " + ", ".join(f"{way} {number:,}" for way, number in seen.items()), flush=True)
        wrong += devices(name, max(1, count // 5), device)
    return wrong


def devices(name: str, count: int, device: str) -> int:
    """Questions whose tokens are not the same here and on another device, but for ties, which are named."""
    here, there = PocketBed(name, device), PocketBed(name, "cpu")
    other = "on a CPU"
    if device == "cpu":
        other = "in float64"
        there.model.double()
        if "dual_encoder" in there.options:
            there.options["dual_encoder"].double()
    torch.backends.cudnn.allow_tf32 = False  # a GPU would round the pixels of a convolution to ten bits
    records: dict[str, list[Record]] = {}
    for key, bed in (("here", here), ("there", there)):
        with torch.no_grad(), attach(bed.model, bed.method, cache_bytes=0, **bed.options) as pruner:
            for scene in pocket.scenes("test", count):
                prompt = f"USER: <image>\n{pocket.questions(scene)[0].text} ASSISTANT:"
                inputs = bed.processor(images=pocket.images([scene]), text=prompt, return_tensors="pt")
                bed.model.generate(**inputs.to(bed.model.device, bed.model.dtype), max_new_tokens=1, do_sample=False)
                records.setdefault(key, []).append(pruner.records[0])
    ties, unlike = [], []
    for number, (one, two) in enumerate(zip(records["here"], records["there"], strict=True)):
        if one.kept.tolist() != two.kept.tolist():
            found = [parting(*both) for both in zip(rankings(one), rankings(two), strict=True)]
            gap, words = min(found, default=(float("inf"), "no ranking is told"))
            (ties if gap <= TIE else unlike).append(f"scene {number}, {words}")
    print(f"{name}: {count:,} scenes {other}: {len(ties)} differ by a tie, {len(unlike)} differ otherwise", flush=True)
    for words in ties + unlike:
        print(f"  {words}")
    return len(unlike)


def rankings(record: Record) -> list[tuple[list[int], list[float]]]:
    """What a method chose by: tokens in order, and the value of each when it was chosen; largest first."""
    found = []
    if record.gains is not None:
        chosen = len(record.choices)
        found.append((record.order[:chosen], record.gains[:chosen]))
    for scores, sign in ((record.ranking, 1), (record.redundancy, -1)):
        if scores is not None:
            values, order = (sign * scores).sort(descending=True, stable=True)
            found.append((order, values))
    return [(order.tolist(), values.tolist()) for order, values in found]


def parting(one: tuple[list[int], list[float]], two: tuple[list[int], list[float]]) -> tuple[float, str]:
    """How far apart, relative to the largest, the values are of the first tokens that the two rankings differ in."""
    largest = max(map(abs, (*one[1], *two[1])))
    for rank, (a, b, value, other) in enumerate(zip(one[0], two[0], one[1], two[1])):
        if a != b:
            gap = abs(value - other) / largest
            return (
                gap,
                f"rank {rank}: token {a} or {b}, values {value:.7g} and {other:.7g}, {gap:.1e} of the largest apart",
            )
    return float("inf"), "the same ranking"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--distinct", type=int, default=60, help="different calls of each model")
    parser.add_argument("--beds", nargs="+", help="methods of the pocket model, families, and on a GPU 7b; else all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cuda-graphs", action="store_true", help="on a CPU, tapes: one run's operations, done again")
    parser.add_argument("--plain", action="store_true", help="without pruners, as a control")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", ".*could not be captured")  # graphs would not be what is tried any more
    torch.set_num_threads(1)
    given.beds = given.beds or [*(["7b"] if given.device != "cpu" else []), *METHODS, *family_cases()]
    if given.only:
        beds = make_beds(given.beds, given.device)
        attach_all(beds, given, cache_bytes=0)
        print(json.dumps({name: {n: bed(n)[1] for n in range(given.distinct)} for name, bed in beds.items()}))
    else:
        raise SystemExit(1 if (repeats(given.repeats, given.device) if given.repeats else soak(given)) else 0)


if __name__ == "__main__":
    main()
