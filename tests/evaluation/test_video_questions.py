"""`vlprune eval` on questions about videos, in a process with a stand-in for torchvision."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from transformers.utils import is_torchvision_available

from vlprune.media.video import read_clip

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(is_torchvision_available(), reason="written for a machine without torchvision")
def test_a_file_and_a_folder_of_its_frames(tmp_path, film):
    (tmp_path / "frames").mkdir()
    for number, frame in enumerate(read_clip(film, 60).frames):
        Image.fromarray(frame).save(tmp_path / "frames" / f"{number:03}.png")
    shared = {"question": "what is it ?", "answer": "it"}
    lines = [{"video": video, **shared} for video in (film, "frames")]
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)))
    model, out = tmp_path / "onevision", tmp_path / "run"
    words = ["eval", "--model", model, "--data", data, "--methods", "random,fastv", "--keep", "0.5", "--frames", "3"]
    words += ["--max-new-tokens", "3", "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.onevision", str(model), *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    tokens = 3 * 25  # three frames of 10 × 10 patches, pooled two by two
    for cell, entering in (("all_tokens", tokens), ("random@0.5", 38), ("fastv@0.5", tokens)):
        of_file, of_folder = map(json.loads, (out / "answers" / f"{cell}.jsonl").read_text().splitlines())
        assert of_file["entering"] == of_folder["entering"] == entering
        if cell != "random@0.5":  # which draws for each question
            assert [of_file[name] for name in ("answer", "kl")] == [of_folder[name] for name in ("answer", "kl")]
    assert json.loads((out / "manifest.json").read_text())["settings"]["frames"] == 3


def test_models_for_images_refuse_videos(program, tmp_path, film):
    data = tmp_path / "questions.jsonl"
    data.write_text(json.dumps({"video": film, "question": "what?", "answer": "it"}))
    code, _, err = program("eval", "--data", data, "--methods", "random")
    assert code == 2
    assert err.splitlines()[-1].startswith("vlprune: --model pocket takes images only")
    code, _, err = program("eval", "--data", data, "--methods", "random", "--resolution", 192)
    assert code == 2
    assert "--resolution 192: it is for images" in err.splitlines()[-1]
