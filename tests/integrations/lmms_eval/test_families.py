"""Every family answers through the wrapper as through transformers: one image, several, and the frames of a video.

Here and not with the other tests, as lmms-eval brings torchvision, which processors of videos need.
"""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.family_checkpoints import CASES, VIDEOS, processor
from tests.support.films import write_film
from vlprune import UniformGrid, attach
from vlprune.evaluation.load_model import LoadedModel
from vlprune.integrations.lmms_eval.answerer import Answerer
from vlprune.integrations.lmms_eval.samples import sample_from_messages
from vlprune.media.video import read_clip

OPTIONS = {"max_new_tokens": 3, "do_sample": False}
METHOD = UniformGrid(keep=4)
WIDE, TALL = (
    Image.fromarray(np.random.default_rng(i).integers(0, 256, (*size, 3), dtype=np.uint8))
    for i, size in enumerate([(40, 64), (48, 32)])
)


@pytest.fixture(scope="module", params=CASES)
def loaded(request):
    return LoadedModel(request.param, CASES[request.param].model().eval(), processor(request.param), None)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    frames = np.random.default_rng(0).integers(0, 256, (12, 48, 64, 3), dtype=np.uint8)
    return write_film(tmp_path_factory.mktemp("film") / "film.mp4", list(frames))


def sample(*shown, text="what is it ?"):
    parts = [{"type": "video" if isinstance(one, str) else "image", "url": one} for one in shown]
    turn = {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
    return sample_from_messages([turn], {"question": text})


def expect(loaded, one, method, **given):
    """The answer of transformers, with `attach` or without, to a prompt that is written out here."""
    turns = [{**turn, "content": list(turn["content"])} for turn in one.turns]
    text = loaded.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    inputs = loaded.processor(text=[text], return_tensors="pt", **given)
    pruner = attach(loaded.model, method, processor=loaded.processor, query=one.question) if method else None
    try:
        with torch.no_grad():
            out = loaded.model.generate(**inputs, **OPTIONS, pad_token_id=0)
    finally:
        if pruner is not None:
            pruner.detach()
    new = out[:, inputs["input_ids"].shape[1] :]
    return loaded.processor.tokenizer.batch_decode(new, skip_special_tokens=True)[0].strip()


def answers(loaded, method, *samples):
    answerer = Answerer(loaded, method, frames=4)
    try:
        return [one["answer"] for one in answerer.generate(samples, OPTIONS)]
    finally:
        answerer.close()


@pytest.mark.parametrize("method", [None, METHOD], ids=["all tokens", "pruned"])
def test_images(loaded, method):
    one, two = sample(WIDE), sample(TALL, text="is it ?")
    expected = [expect(loaded, one, method, images=[WIDE]), expect(loaded, two, method, images=[TALL])]
    assert [answers(loaded, method, row)[0] for row in (one, two)] == expected
    assert answers(loaded, method, one, two) == expected


@pytest.mark.parametrize("method", [None, METHOD], ids=["all tokens", "pruned"])
def test_two_images(loaded, method):
    both = sample(WIDE, TALL)
    assert answers(loaded, method, both) == [expect(loaded, both, method, images=[[WIDE, TALL]])]


@pytest.mark.parametrize("method", [None, METHOD], ids=["all tokens", "pruned"])
def test_a_video(loaded, method, film):
    if loaded.name not in VIDEOS:
        pytest.skip("it takes images only")
    clip = read_clip(film, 4)
    given = {"videos": [np.stack(clip.frames)], "video_metadata": [clip.metadata], "do_sample_frames": False}
    assert answers(loaded, method, sample(film)) == [expect(loaded, sample(film), method, **given)]
