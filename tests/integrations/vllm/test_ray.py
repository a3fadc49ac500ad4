"""`examples/ray_batch.py` on the pocket model with two workers, of which one is killed: every image has its answer."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from tests.integrations.vllm import server
from vlprune import pocket
from vlprune.integrations.vllm import save_for_vllm

ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 8, "block_size": 32}
COUNT = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A parquet file of drawn scenes with a question each, and the pocket model as vLLM reads it."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    place = tmp_path_factory.mktemp("ray")
    scenes = pocket.scenes(11, COUNT)
    rows = []
    for number, (scene, picture) in enumerate(zip(scenes, pocket.images(scenes))):
        picture.save(place / f"{number}.png")
        asked = pocket.questions(scene)[0]
        rows.append({"id": f"scene {number}", "image": (place / f"{number}.png").read_bytes(), "question": asked.text})
    parquet.write_table(arrow.Table.from_pylist(rows), place / "scenes.parquet")
    return place, rows, save_for_vllm(pocket.path(), place / "pocket")


def start(place, model, output):
    command = [sys.executable, "examples/ray_batch.py", str(place / "scenes.parquet"), str(output), "--model", model]
    command += ["--workers", "2", "--batch-size", "4", "--max-new-tokens", "2", "--engine", json.dumps(ENGINE)]
    env = server.environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind")
    return subprocess.Popen(
        command, env=env, cwd=server.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answers(output):
    lines = [line for file in output.glob("*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_a_killed_worker_loses_nothing_and_a_second_run_does_nothing(data, tmp_path):
    place, rows, model = data
    output = tmp_path / "answers"
    run, killed, end = start(place, model, output), False, time.monotonic() + 900
    while run.poll() is None and time.monotonic() < end:
        if not killed and output.exists() and len(answers(output)) >= 4:
            below = psutil.Process(run.pid).children(recursive=True)
            workers = [one for one in below if one.is_running() and "MapWorker" in " ".join(one.cmdline())]
            if workers:
                workers[0].kill()
                killed = True
        time.sleep(0.1)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, out[-2000:] + err[-3000:]
    assert killed
    found = answers(output)
    assert sorted(one["id"] for one in found) == sorted(row["id"] for row in rows)
    assert f"{COUNT} of {COUNT} answered" in out
    again = start(place, model, output)
    out, err = again.communicate(timeout=600)
    assert again.returncode == 0, err[-3000:]
    assert f"{COUNT} answered before, 0 to go" in out
