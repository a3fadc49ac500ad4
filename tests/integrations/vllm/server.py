"""vLLM's OpenAI server in processes of its own, as a user starts it."""

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[3]


def environment(**more):
    """What the processes of a server or an engine need here."""
    own = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    path = os.pathsep.join([str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **own, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PYTHONPATH": path, **more}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def serving(folder, settings, log, *options, architecture="PrunedLlavaForConditionalGeneration", wait=600):
    """The address of a server; it is stopped at the end. `log` is a file for what it says, next to its metrics."""
    port, log = free_port(), Path(log)
    metrics = log.with_suffix(".metrics")
    metrics.mkdir(exist_ok=True)
    overrides = {} if settings is None else {"architectures": [architecture], "vlprune": settings}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "tiny", "--hf-overrides", json.dumps(overrides)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "32"]
    command += ["--block-size", "32", "--limit-mm-per-prompt", '{"image": 3}', *options]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment(PROMETHEUS_MULTIPROC_DIR=str(metrics)), cwd=ROOT
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log, wait)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process, address, log, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"the server did not start in {seconds} s:\n{log.read_text()[-4000:]}")


def data_url(picture):
    """A picture as a chat carries it."""
    data = io.BytesIO()
    picture.save(data, format="PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def messages(ask):
    """The chat of one request."""
    content = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in ask.images]
    return [{"role": "user", "content": [*content, {"type": "text", "text": ask.text}]}]


def metric(address, name):
    """The value of a Prometheus counter, summed over its labels."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
