"""LLM prefill with and without pruning, eager and as CUDA graphs, on a GPU: `python benchmarks/prefill.py`.

Published architectures with random weights in bf16, Script and ScriptPlus with the papers' budgets, 64 words of text.
Both the whole and the pruned model run each way: in plain transformers, with their LLM as CUDA graphs
(`cuda_graphs=True`), and with its layers compiled first (`cuda_graphs="compile"`). Two ratios: prefill by choosing +
prefill, each timed alone, where choosing is to embed the question and to select; and the time to the first
token, from the call of `generate` to the first logits, with the vision tower and all that the host does.
The floor is the larger of two times: the LLM's weights read once, and its operations, at rates measured here first.

Before that, on few layers of LLaVA-1.5-7B: in float32 the answers must be the same each way, and in bf16 each way's
logits are compared with those of the same weights in float32.
"""

import argparse
import copy
import dataclasses
import json
import time
import warnings

import torch
from subjects import KEEP, LLAVAS, PUBLISHED, TEXT_TOKENS, WAYS, free_memory

from vlprune import Random, Script, ScriptPlus, attach
from vlprune.measure import llm_flops
from vlprune.measure.architectures import get_architecture
from vlprune.measure.efficiency import describe_machine, measure_efficiency
from vlprune.measure.efficiency_report import RUNTIMES

#: Ways in which the LLM runs otherwise.
LLM_WAYS = {name: way for name, way in WAYS.items() if way in RUNTIMES}
GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}


def time_call(function, repeats: int = 10) -> float:
    """Seconds of one call, after two that do not count."""
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else int
    for _ in range(2):
        function()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    wait()
    return (time.perf_counter() - start) / repeats


def measure_rates(device: str, size: int = 8192) -> tuple[float, float]:
    """Bytes a second of a copy, read and written, and operations a second of a bf16 matrix product."""
    big = torch.randn(16, size, size, device=device).to(torch.bfloat16)
    other = torch.empty_like(big)
    copied = 2 * big.nbytes / time_call(lambda: other.copy_(big))
    a, b = big[0], big[1]
    multiplied = 2 * size**3 / time_call(lambda: a @ b)
    return copied, multiplied


def floor_seconds(model, tokens: int, rates: tuple[float, float]) -> tuple[float, float]:
    """Seconds to read the LLM's weights once, and to compute the prefill of so many tokens."""
    weights = {*model.get_decoder().parameters(), *model.lm_head.parameters()} - {
        *model.get_input_embeddings().parameters()
    }
    return sum(weight.nbytes for weight in weights) / rates[0], llm_flops(model, tokens).prefill / rates[1]


def generate(model, inputs, method, cuda_graphs, new_tokens: int):
    """New tokens and logits of a call of `generate`, the second in its shapes."""
    with attach(model, method, cache_bytes=0, cuda_graphs=cuda_graphs):
        for _ in range(2):  # the first captures
            out = model.generate(**inputs, **GREEDY, max_new_tokens=new_tokens, min_new_tokens=new_tokens)
    return out.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(out.logits)[:, 0].float()


def build_shallow_model(device: str, dtype: torch.dtype, layers: int):
    """LLaVA-1.5-7B with few layers, and inputs for it."""
    one = get_architecture("llava-1.5-7b")

    def config():
        made = one.config()
        made.text_config.num_hidden_layers = made.vision_config.num_hidden_layers = layers
        return made

    torch.manual_seed(0)
    model = dataclasses.replace(one, config=config).build(device, dtype)
    return model, one.inputs(model, TEXT_TOKENS)


def check_answers(device: str, ways) -> None:
    """Check two layers in float32, where only a mistake makes other answers."""
    model, inputs = build_shallow_model(device, torch.float32, 2)
    for keep in (64, 1.0):
        expected, logits = generate(model, inputs, Script(keep=keep), False, 16)
        for way in ways:
            tokens, found = generate(model, inputs, Script(keep=keep), way, 16)
            error = ((found - logits).norm() / logits.norm()).item()
            print(f"two layers, float32, keep={keep}, {RUNTIMES[way]}: same 16 tokens {torch.equal(tokens, expected)}, "
                  f"logits differ by {error:.1e}")  # fmt: skip
            if not torch.equal(tokens, expected):
                raise SystemExit("graphs change the answers.")


def check_rounding(device: str) -> dict:
    """Distances of each way's logits of the prompt, four layers in bf16, from those of the same weights in float32."""
    model, inputs = build_shallow_model(device, torch.bfloat16, 4)
    exact = copy.deepcopy(model).float()
    errors = {}
    for keep in (64, 1.0):
        wide = {name: value.float() if value.is_floating_point() else value for name, value in inputs.items()}
        _, truth = generate(exact, wide, Random(keep=keep), False, 1)  # Random: the same tokens in both
        for title, way in LLM_WAYS.items():
            _, found = generate(model, inputs, Random(keep=keep), way, 1)
            errors[f"{title}, keep={keep}"] = error = ((found - truth).norm() / truth.norm()).item()
            print(f"four layers, bf16, keep={keep}, {RUNTIMES[way]}: logits are {error:.2e} from float32's")
    return errors


def measure_model(name: str, ways, rates, args) -> dict:
    """Measure and print one model each way; returns the figures."""
    one, keep = get_architecture(name), KEEP[name]
    torch.manual_seed(0)
    model = one.build(args.device)
    inputs = one.inputs(model, TEXT_TOKENS)
    print(f"\n{name}: {one.visual}, keep={keep}, {TEXT_TOKENS} words; ms")
    head = f"  {'method':28} {'LLM runs':22} tokens   prefill  question selection  ratio  first token  ratio"
    print(f"{head}  decode   floor")
    rows = []
    for way in ways:
        report = measure_efficiency(
            model,
            inputs,
            [Script(keep=keep), ScriptPlus(keep=keep)],
            name=name,
            cuda_graphs=way,
            new_tokens=args.new,
            repeats=args.repeats,
        )
        whole = report.rows[0]
        for row in report.rows:
            sums = [one.prefill.median + one.question.median + one.selection.median for one in (whole, row)]
            limits = floor_seconds(model, row.prompt_tokens, rates)
            decode = f"{1e3 * row.decode.median:7.2f}" if row.decode is not None else ""
            parts = [f"{1e3 * part.median:10.2f}" for part in (row.prefill, row.question, row.selection)]
            print(
                f"  {row.method:28} {RUNTIMES[row.cuda_graphs]:22} {row.prompt_tokens:6} {''.join(parts)} "
                f"{sums[0] / sums[1]:6.2f} {1e3 * row.first.median:12.2f} "
                f"{whole.first.median / row.first.median:6.2f} {decode:>7} {1e3 * max(limits):7.2f}",
                flush=True,
            )
            rows.append({**dataclasses.asdict(row), "floor": dict(zip(("bytes", "operations"), limits))})
    return {"model": name, "keep": str(keep), **describe_machine(model), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=LLAVAS, choices=PUBLISHED)
    parser.add_argument("--ways", nargs="+", default=list(LLM_WAYS), choices=list(LLM_WAYS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--new", type=int, default=9, help="new tokens; 1 leaves decoding out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="write the figures there too")
    args = parser.parse_args()
    ways = [LLM_WAYS[way] for way in args.ways]
    warnings.filterwarnings("error", message="vlprune: without CUDA graphs")  # figures must be what they say
    rates = measure_rates(args.device)
    name = torch.cuda.get_device_name(args.device)
    print(f"{name}: copies {rates[0] / 1e12:.2f} TB/s (read and written), multiplies {rates[1] / 1e12:.0f} TFLOP/s")
    check_answers(args.device, [way for way in ways if way])
    rounding, found = check_rounding(args.device), []
    for model in args.models:
        found.append(measure_model(model, ways, rates, args))
        free_memory()
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"rates": rates, "rounding": rounding, "models": found}, file, indent=1)


if __name__ == "__main__":
    main()
