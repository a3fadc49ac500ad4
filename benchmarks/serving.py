"""Requests per second and time to first token of vLLM's OpenAI server, pruned against unpruned.

    python benchmarks/serving.py                                             # the pocket model, on CPU
    python benchmarks/serving.py --model clip-large                          # CLIP ViT-L's width, few layers, on CPU
    python benchmarks/serving.py --model llava-hf/llava-1.5-7b-hf --keep 64  # with a GPU

One server is started, which keeps all tokens unless a request says otherwise; then, for each number of concurrent
requests, it gets requests as they are and with a budget, in turn. Every request has an image and a question of its own,
so nothing comes from a cache. The figures are those of the machine it runs on; only the ratios travel.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ARCHITECTURES = {"llava": "Llava", "llava_next": "LlavaNext", "llava_onevision": "LlavaOnevision"}
ARCHITECTURES |= {"internvl": "InternVL", "qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}


def architecture(model):
    """The name of the model's class with pruning."""
    from transformers import AutoConfig

    kind = AutoConfig.from_pretrained(model).model_type
    if kind not in ARCHITECTURES:
        raise SystemExit(f"model={model}: of kind {kind}; choose from {', '.join(ARCHITECTURES)}.")
    return f"Pruned{ARCHITECTURES[kind]}ForConditionalGeneration"


@contextmanager
def serving(model, method, options):
    """The address of a server that lets requests say what to keep."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    overrides = {"architectures": [architecture(model)], "vlprune": {"method": method, "keep": 1.0}}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "model", "--hf-overrides", json.dumps(overrides)]
    command += ["--trust-request-mm-kwargs", "--no-enable-prefix-caching", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            while not answers(f"{address}/health"):
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read()[-3000:]}")
                time.sleep(1)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def scene(number):
    """A drawn scene as a data URL, and a question about it."""
    from vlprune import pocket

    made = pocket.scenes(number, 1)
    question = pocket.questions(made[0])[0]
    data = io.BytesIO()
    pocket.images(made)[0].save(data, format="PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode(), question.text


async def ask(client, shown, keep, new_tokens):
    """Seconds to the first token of one request."""
    url, text = shown
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    extra = {"ignore_eos": True}
    if keep is not None:
        extra["mm_processor_kwargs"] = {"vlprune": {"keep": keep}}
    start, first = time.perf_counter(), None
    stream = await client.chat.completions.create(
        model="model",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=new_tokens,
        stream=True,
        extra_body=extra,
    )
    async for _ in stream:
        first = first if first is not None else time.perf_counter() - start
    return first


async def measure(address, scenes, concurrent, keep, new_tokens):
    """(seconds for all of them, seconds to the first token of each)."""
    import openai

    gate = asyncio.Semaphore(concurrent)
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=3600) as client:

        async def one(shown):
            async with gate:
                return await ask(client, shown, keep, new_tokens)

        start = time.perf_counter()
        seconds = await asyncio.gather(*map(one, scenes))
        return time.perf_counter() - start, seconds


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def clip_large(folder):
    """A LLaVA with random weights that two CPU cores can serve: the width and the images of CLIP ViT-L/14-336, six of
    its 24 layers, and a Llama of 1,024 channels and eight layers."""
    from transformers import AutoProcessor, LlavaConfig, LlavaForConditionalGeneration

    from vlprune import pocket

    config = LlavaConfig.from_pretrained(pocket.path())
    config.vision_config.update({"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16})
    config.vision_config.update({"num_hidden_layers": 6, "image_size": 336, "patch_size": 14})
    config.text_config.update({"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8})
    config.text_config.update({"num_attention_heads": 16, "num_key_value_heads": 16})
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(pocket.path())
    processor.patch_size = 14
    processor.image_processor.size = {"shortest_edge": 336}
    processor.image_processor.crop_size = {"height": 336, "width": 336}
    processor.save_pretrained(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help="pocket, clip-large (random weights), a folder or a hub id")
    parser.add_argument("--method", default="script")
    parser.add_argument("--keep", type=int, default=64)
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=1, help="per turn and concurrent one, at least 4 in all")
    parser.add_argument("--turns", type=int, default=3, help="of each: unpruned and pruned take turns")
    parser.add_argument("--new-tokens", type=int, default=8)
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        model = given.model
        if model in ("pocket", "clip-large"):
            from vlprune import pocket
            from vlprune.integrations.vllm import save_for_vllm

            source = pocket.path() if model == "pocket" else clip_large(Path(place) / "source")
            model = save_for_vllm(source, Path(place) / "model")
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
            options = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "32", *options]
        with serving(model, given.method, options) as address:
            report(address, given)


def report(address, given):
    """Measure and print. Unpruned and pruned take turns, so that both see the same machine."""
    budgets, seed = (None, given.keep), 10**6
    for keep in budgets:  # the first requests warm up
        asyncio.run(measure(address, [scene(seed := seed + 1) for _ in range(2)], 1, keep, 2))
    print(f"{'concurrent':>10} {'kept':>5} {'requests/s':>11} {'first token p50':>16} {'p99':>8}", flush=True)
    for concurrent in given.concurrent:
        found = {keep: (0.0, []) for keep in budgets}
        for turn in range(2 * given.turns):
            keep = budgets[turn % 2]
            shown = [scene(seed := seed + 1) for _ in range(max(4, given.requests * concurrent))]
            took, seconds = asyncio.run(measure(address, shown, concurrent, keep, given.new_tokens))
            found[keep] = found[keep][0] + took, found[keep][1] + seconds
        rows = [(len(first) / took, quantile(first, 0.5), quantile(first, 0.99)) for took, first in found.values()]
        for name, (rate, half, most) in zip(("all", given.keep), rows):
            print(f"{concurrent:>10} {name:>5} {rate:>11.2f} {half:>14.3f} s {most:>6.3f} s", flush=True)
        (rate, half, _), (faster, sooner, _) = rows
        print(f"{'':>10} {'':>5} {faster / rate:>10.2f}x {half / sooner:>15.2f}x", flush=True)


if __name__ == "__main__":
    main()
