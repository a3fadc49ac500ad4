"""The program on a tiny checkpoint of every family, each saved with a processor of its own class.

torchvision is not here. Images are asked about in this process, without it; videos in another, with a stand-in for it
(see `stand_in`).
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.utils import is_torchvision_available

from tests.support.family_checkpoints import CASES, QUESTION, VIDEOS
from vlprune import Budget, Script, attach

pytestmark = pytest.mark.skipif(is_torchvision_available(), reason="written for a machine without torchvision")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, film):
    """The folder with the checkpoints, and what the program said about the film, by family."""
    folder = tmp_path_factory.mktemp("families")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.family_checkpoints", str(folder), film],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "wide.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 64, 3), dtype=np.uint8)).save(path)
    return path


IMAGES = {  # parts of the image: how many and their grids, and structural tokens
    "llava_next": ([("base", [4, 4]), *[("tile", [3, 4])] * 4], 6),
    "llava_next_video": ([("base", [4, 4]), *[("tile", [3, 4])] * 4], 6),
    "llava_onevision": (
        [("base", [3, 3]), *[("tile", [1, 3])] * 4, *[("tile", [3, 3])] * 8, *[("tile", [1, 3])] * 4],
        8,
    ),
    "video_llava": ([("image", [4, 4])], 0),
    "internvl": ([("tile", [3, 3])] * 2 + [("thumbnail", [3, 3])], 0),
    "qwen2_vl": ([("image", [4, 7])], 0),
    "qwen2_5_vl": ([("image", [4, 7])], 0),
    "qwen3_vl": ([("image", [4, 7])], 0),
    "vipllava": ([("image", [4, 4])], 0),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(run, saved, wide, name):
    code, out, err = run("ask", wide, QUESTION, "--model", saved[0] / name, "--keep", "6", "--json")
    assert code == 0
    assert err == "" or (name == "vipllava" and err.count("\n") == 1 and "family 'generic'" in err)
    tokens = json.loads(out)["tokens"]
    parts, structure = IMAGES[name]
    assert [(part["name"], part["grid"]) for part in tokens["parts"]] == parts
    assert tokens["structure"]["before"] == structure >= tokens["structure"]["after"]
    assert tokens["before"] == sum(rows * columns for _, (rows, columns) in parts)
    assert tokens["after"] == len(tokens["kept"]) == sum(part["after"] for part in tokens["parts"]) == 6


def test_quotas_for_tiles(run, saved, wide):
    ask = ("ask", wide, QUESTION, "--model", saved[0] / "llava_next", "--json", "--keep")
    found = json.loads(run(*ask, "2/tile")[1])
    assert found["keep"] == "2/tile"
    assert [part["after"] for part in found["tokens"]["parts"]] == [2] * 5
    assert json.loads(run(*ask, "2/tile/compete")[1])["tokens"]["after"] == 10


def test_what_the_library_gives(run, saved, wide):
    from transformers import AutoProcessor, LlavaNextForConditionalGeneration

    place = saved[0] / "llava_next"
    found = json.loads(run("ask", wide, QUESTION, "--model", place, "--keep", "2/tile", "--json")[1])
    model, processor = LlavaNextForConditionalGeneration.from_pretrained(place), AutoProcessor.from_pretrained(place)
    text = f"USER: <image> {QUESTION} ASSISTANT:"
    inputs = processor(images=Image.open(wide), text=text, return_tensors="pt")
    with attach(model, Script(keep=Budget(per_tile=2)), processor=processor) as pruner, torch.no_grad():
        out = model.generate(**inputs, do_sample=False, max_new_tokens=64)
    assert found["tokens"]["kept"] == pruner.last.kept.tolist()
    new = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)[0].strip()
    assert found["answer"] == new


@pytest.mark.parametrize("name", ["llava_next", "llava_onevision", "internvl", "qwen2_5_vl"])
def test_pictures(run, saved, wide, tmp_path, name):
    ask = ("ask", wide, QUESTION, "--model", saved[0] / name, "--keep", "6", "--show", "out.png")
    code, out, _ = run(*ask)
    assert code == 0
    assert ("structural ones" in out) == (name in ("llava_next", "llava_onevision"))
    assert min(Image.open(tmp_path / "out.png").size) > 200


@pytest.mark.parametrize("name", ["llava_next", "internvl", "qwen2_5_vl", "vipllava"])
def test_comparisons(run, saved, wide, tmp_path, monkeypatch, name):
    """All methods run; but not all on a model that no family knows, which has no tower's attention to give."""
    monkeypatch.setattr("vlprune.show.picture.DPI", 70)  # a panel for each method and tile: at 160 it takes seconds
    ask = ("compare", wide, QUESTION, "--model", saved[0] / name, "--keep", "6", "--repeats", "1", "--json")
    code, out, _ = run(*ask, "--max-new-tokens", "4")
    assert code == 0
    found = json.loads(out)["methods"]
    lack = {method for method, told in found.items() if "reason" in told}
    assert lack == ({"attention_top_k", "visionzip", "trim"} if name == "vipllava" else set())
    for method in found.keys() - lack:
        assert found[method]["tokens"]["after"] >= 6
        assert found[method]["entering"] <= found["random"]["tokens"]["before"]
    assert min(Image.open(tmp_path / "vlprune-compare.png").size) > 500


@pytest.mark.parametrize("name", VIDEOS)
def test_videos(saved, name):
    (code, out, err), (code_too, printed, err_too) = saved[1][name]
    assert (code, code_too, err.count("\n")) == (0, 0, 1)
    assert "script compares question and tokens by the LLM's embeddings" in err
    assert ("dual_encoder=" in err) == (name in ("llava_next_video", "llava_onevision"))  # the others have none
    assert sorted(err_too.splitlines(keepends=True))[-1] == err
    assert (err_too.count("\n"), err_too[:17]) == (2, "vlprune: loading ")
    tokens = json.loads(out)["tokens"]
    frames = 2 if name.startswith("qwen") else 4  # Qwen's models join two neighbours
    assert len(tokens["parts"]) == frames
    each = frames if name == "internvl" else 1  # its frames are images, with a budget of their own
    assert tokens["after"] == len(tokens["kept"]) == 3 * each
    assert tokens["kind"] == ("image" if name == "internvl" else "video")
    assert f"kept {2 * frames} of {tokens['before']} visual tokens" in printed
    assert min(Image.open(saved[0] / f"{name}.png").size) > 500 * 70 / 160  # it has 70 dots an inch, and not 160


@pytest.mark.parametrize("name", VIDEOS)
def test_videos_without_torchvision(run, saved, film, name):
    code, out, err = run("ask", film, QUESTION, "--model", saved[0] / name)
    assert (code, out) == (2, "")
    assert "prepares its videos with torchvision, which is not installed" in err


def test_all_families_are_here():
    """But for LLaVA-1.5, whose checkpoint the other tests ask."""
    from vlprune.models import list_families

    assert {family.name for family in list_families() if family.classes} <= {*CASES, "llava"}
