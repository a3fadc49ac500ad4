"""A long run of mixed calls on one attached model: are results, memory and open files at the end as at the beginning?

    python benchmarks/soak.py --calls 10000                    # one thread
    python benchmarks/soak.py --calls 2000 --threads 8         # the lock around an attached model
    python benchmarks/soak.py --device cuda --seconds 600 --cuda-graphs --model-size 7b   # on a GPU
    python benchmarks/soak.py --repeats 1000                   # same inputs, same tokens

Calls are drawn from a seed: one question or a batch, one or two images, a text alone, two turns on one cache, direct
calls of the model, and calls that fail; some images are in the feature cache. Each result is compared with the one that
the same call had in a fresh process before the soak. Memory is sampled all along; the slope is that of a line through
the samples of the last three quarters. Memory and open files are printed; results, hooks and attributes decide the
exit code. At the end the pruner is detached, and the model must be what it was.
`--repeats` asks the same again, alone and beside two others in a batch, and in plain torch, and compares tokens.
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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from vlprune import FastV, Script, ScriptPlus, VisionZip, attach, pocket

METHODS = {"script": Script(keep=16), "script_plus": ScriptPlus(keep=16), "visionzip": VisionZip(keep=16)}
METHODS |= {"fastv": FastV(keep=64)}
QUESTIONS = [
    "is there a red star?",
    "what color is the circle?",
    "how many squares are there?",
    "is there a blue circle?",
]


def load(device: str, size: str) -> tuple[Any, Any, Any]:
    """The pocket model; or, to load a GPU, one with random weights of LLaVA-1.5-7B's size behind the same processor."""
    model, processor, clip = pocket.load()
    if size == "7b":
        from transformers import LlavaConfig, LlavaForConditionalGeneration

        config = LlavaConfig.from_pretrained(pocket.path())
        large = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
        config.text_config.update({**large, "num_key_value_heads": 32, "head_dim": 128})
        torch.manual_seed(0)
        with torch.device(device):
            tower = model.model.vision_tower
            model = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16).eval()
            model.model.vision_tower = tower.to(device, torch.bfloat16)
    return model.to(device), processor, clip.to(device)


class Calls:
    """Calls by number, on one model; each is drawn from its number alone."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor

    def inputs(self, draw: random.Random, rows: int, images: int) -> Any:
        pictures = [np.random.default_rng(draw.randrange(40)).integers(0, 256, (192, 192, 3), dtype=np.uint8)]
        pictures = [pictures[0] for _ in range(rows * images)] if rows * images else []
        texts = [f"USER: {'<image> ' * images}{draw.choice(QUESTIONS)} ASSISTANT:" for _ in range(rows)]
        made = self.processor(images=pictures or None, text=texts, padding=True, return_tensors="pt")
        made = made.to(self.model.device)
        if "pixel_values" in made:
            made["pixel_values"] = made["pixel_values"].to(self.model.dtype)
        return made

    def __call__(self, number: int) -> tuple[str, list[int]]:
        """The kind of the call, and what came out of it, as numbers."""
        draw = random.Random(number)
        kind = draw.choice(["one", "one", "batch", "two images", "text", "turns", "forward", "error"])
        with torch.no_grad():
            return kind, getattr(self, "_" + kind.replace(" ", "_"))(draw)

    def _generate(self, inputs: Any, tokens: int = 2, **more: Any) -> list[int]:
        out = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **more)
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
        ids = torch.cat([first.sequences, inputs["input_ids"][:, -4:]], dim=1)
        again = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": first.past_key_values}
        return self._generate(again)

    def _forward(self, draw: random.Random) -> Any:
        return self.model(**self.inputs(draw, 1, 1)).logits[0, -1].topk(3).indices.tolist()

    def _error(self, draw: random.Random) -> Any:
        inputs, kind = self.inputs(draw, 1, 1), draw.choice(["embeddings", "no question", "layer", "shape"])
        try:
            if kind == "embeddings":
                self.model(inputs_embeds=torch.zeros(1, 3, 8), pixel_values=inputs["pixel_values"])
            elif kind == "no question":
                self._generate({**inputs, "input_ids": inputs["input_ids"][:, :-9]})
            elif kind == "shape":
                self._generate({**inputs, "attention_mask": inputs["attention_mask"][:, 1:]})
            else:
                self._generate(inputs, logits_processor=[_explode])
        except (ValueError, RuntimeError, TypeError) as error:
            return [len(type(error).__name__)]
        return [0]


def _explode(ids: Any, scores: Any) -> Any:
    raise RuntimeError("on purpose")


def fresh_results(numbers: list[int], method: str, given: Any) -> dict[int, Any]:
    """What the same calls give in a process of their own, which does nothing else."""
    words = [sys.executable, __file__, "--only", json.dumps(numbers), "--method", method, "--device", given.device]
    words += ["--model-size", given.model_size] + ["--cuda-graphs"] * given.cuda_graphs
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return {int(number): out for number, out in json.loads(done.stdout.splitlines()[-1]).items()}


def resident() -> float:
    """This process's memory in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> int:
    """How many files this process holds open."""
    return len(os.listdir("/proc/self/fd"))


def slope(samples: list[tuple[int, float]]) -> float:
    """MiB per 1,000 calls, over the last three quarters of the samples."""
    late = np.array(samples[len(samples) // 4 :])
    return float(np.polyfit(late[:, 0], late[:, 1], 1)[0] * 1000) if len(late) > 2 else 0.0


def soak(method: str, given: Any) -> int:
    """Run the calls on one method; the number of results that differ."""
    model, processor, clip = load(given.device, given.model_size)
    kinds: Counter[str] = Counter()
    with torch.no_grad():  # whatever transformers itself puts on a model at first use
        Calls(model, processor)._turns(random.Random(0))
        model(**Calls(model, processor).inputs(random.Random(0), 1, 1), output_hidden_states=True)
        model.get_image_features(Calls(model, processor).inputs(random.Random(0), 1, 1)["pixel_values"])
    own = sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    distinct = list(range(given.distinct))
    expected = fresh_results(distinct, method, given)
    encoder = clip if method.startswith("script") else None
    samples: list[tuple[int, float]] = []
    wrong, done, lock = 0, 0, threading.Lock()
    begun = time.time()
    options: dict[str, Any] = {"cuda_graphs": given.cuda_graphs} if given.cuda_graphs else {}
    pruner = attach(model, METHODS[method], processor=processor, dual_encoder=encoder, cache_bytes=2**22, **options)
    call, opened = Calls(model, processor), open_files()

    def one(index: int) -> None:
        nonlocal wrong, done
        if time.time() - begun > given.seconds:
            return
        number = distinct[random.Random(f"{given.seed} {index}").randrange(len(distinct))]
        kind, out = call(number)
        with lock:
            kinds[kind] += 1
            wrong += out != expected[number]
            done += 1
            if out != expected[number]:
                print(f"call {index} ({kind}, number {number}): {out} is not {expected[number]}", flush=True)
            if done % max(1, given.calls // 200) == 0:
                samples.append((done, resident()))

    if given.threads == 1:
        for index in range(given.calls):
            one(index)
    else:
        with ThreadPoolExecutor(given.threads) as pool:
            for future in [pool.submit(one, index) for index in range(given.calls)]:
                future.result(600)
    files = open_files()
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
    pruner.detach()
    gc.collect()
    left = sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()) - own
    changed = [name for name, module in model.named_modules() if set(vars(module)) - before[name]]
    memory = [size for _, size in samples] or [0.0]
    print(
        f"{method}: {done:,} calls by {given.threads} threads in {time.time() - begun:.0f} s, {wrong} differ from a "
        f"fresh process; memory {memory[0]:.0f} to {memory[-1]:.0f} MiB, {slope(samples):+.2f} MiB per 1,000 calls; "
        f"{opened} to {files} open files; {sum(hooks) - own} hooks, after detach {left}, and {len(changed)} modules "
        "changed"
    )
    if given.device != "cpu":
        now, most = torch.cuda.memory_allocated() / 2**20, torch.cuda.max_memory_allocated() / 2**20
        print(f"  GPU: {now:.0f} MiB allocated, {most:.0f} at most")
    print("  " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())))
    return wrong + left + len(changed)


def repeats(count: int, device: str) -> int:
    """The same prompt so many times, alone and between neighbours, with the fused kernels and without."""
    from vlprune.selection import use_fused

    model, processor, clip = load(device, "pocket")
    call, wrong = Calls(model, processor), 0
    for name, method in METHODS.items():
        encoder = clip if name.startswith("script") else None
        with torch.no_grad(), attach(model, method, processor=processor, dual_encoder=encoder, cache_bytes=0) as pruner:
            batch = call.inputs(random.Random(5), 3, 1)
            alone = {key: value[:1] for key, value in batch.items()}

            def run(inputs: Any, pruner: Any = pruner) -> tuple[Any, Any]:
                out = model.generate(**inputs, max_new_tokens=2, do_sample=False)
                return out[0, inputs["input_ids"].shape[1] :].tolist(), pruner.records[0].kept.tolist()

            first, told = run(alone), Counter()
            for way, inputs, times in (("again", alone, count), ("beside two others", batch, max(1, count // 10))):
                for _ in range(times):
                    told[way] += 1
                    told[f"{way}: differ"] += run(inputs) != first
            with use_fused(False):
                told["in plain torch: differ"] += run(alone) != first
        wrong += sum(number for way, number in told.items() if "differ" in way)
        print(f"{name}: " + ", ".join(f"{way} {number:,}" for way, number in told.items()))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="in all, shared between the methods")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="in all, shared between the methods")
    parser.add_argument("--distinct", type=int, default=60, help="different calls among them")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model-size", choices=["pocket", "7b"], default="pocket")
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.only is not None:
        model, processor, clip = load(given.device, given.model_size)
        call, encoder = Calls(model, processor), clip if given.method.startswith("script") else None
        with attach(model, METHODS[given.method], processor=processor, dual_encoder=encoder, cache_bytes=0):
            print(json.dumps({number: call(number)[1] for number in json.loads(given.only)}))
        return
    if given.repeats:
        raise SystemExit(1 if repeats(given.repeats, given.device) else 0)
    given.calls //= len(given.methods)
    given.seconds /= len(given.methods)
    raise SystemExit(1 if sum(soak(method, given) for method in given.methods) else 0)


if __name__ == "__main__":
    main()
