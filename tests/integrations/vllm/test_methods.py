"""Every method that chooses before the LLM, and budgets of every kind, as in `attach`."""

import gc

import pytest

from tests.integrations.vllm import checkpoints, engine
from tests.integrations.vllm.checkpoints import picture, question
from tests.integrations.vllm.engine import Ask
from tests.support.tiny_llava import loud
from vlprune import Budget, Random, Script, get_method, list_methods
from vlprune.methods.in_llm import split_stages

BEFORE_THE_LLM = [name for name in list_methods() if split_stages(get_method(name))[1] is None]
CASES = [("llava", name, 6, "") for name in BEFORE_THE_LLM]
CASES += [("llava", name, 6, "clip") for name in ("script", "trim")]
CASES += [(family, "visionzip", 6, "") for family in ("llava_next", "internvl", "qwen2_5_vl")]
CASES += [("llava_next", "script", Budget(per_tile=3), ""), ("internvl", "script", Budget(per_tile=2), "")]
CASES += [("qwen2_vl", "script", 0.25, "")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    engine.keep_every_newline()
    place = tmp_path_factory.mktemp("checkpoints")
    return {name: checkpoints.save(name, place / name) for name in sorted({case[0] for case in CASES})}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A CLIP with the tiny LLaVA's tower and words."""
    from transformers import CLIPConfig, CLIPModel

    words = checkpoints.own_processor("llava").tokenizer
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"vocab_size": len(words), "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1}
    vision = checkpoints.config("llava").vision_config.to_dict()
    config = CLIPConfig(text_config={**text, "eos_token_id": words.eos_token_id}, vision_config=vision)
    folder = tmp_path_factory.mktemp("clip")
    loud(CLIPModel(config), seed=3).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("family", "name", "keep", "source"), CASES, ids=str)
def test_answers_equal_attach(folders, clip, family, name, keep, source):
    method, folder = get_method(name, keep=keep), folders[family]
    given = {"dual_encoder": clip} if source == "clip" else {}
    no_video = {} if family.startswith("llava") else {"video": 0}
    llm = engine.start(folder, method, limits={"image": 2, **no_video}, **given)
    asks = [Ask(question(i), (picture(i, (60, 44 + 8 * (i % 3))),)) for i in range(6)]
    want = [engine.expected(folder, method, ask, **given) for ask in asks]
    assert engine.answers(llm, asks, checkpoints.reference(folder)[1]) == want
    del llm
    gc.collect()


VIDEOS = [("llava_onevision", 8), ("llava_onevision", Budget(per_frame=2)), ("qwen2_vl", 8), ("qwen2_5_vl", 8)]
VIDEOS += [("qwen3_vl", Budget(per_frame=3)), ("internvl", 3)]


def facts(fps):
    """When the four frames of a video were taken.

    Behind a Qwen2.5-VL video that is longer, in positions, than it is high and wide, vLLM 0.32 and transformers 5 go on
    at different positions, pruned or not: at eight frames a second this one is not.
    """
    taken = {"fps": fps, "duration": 4 / fps, "total_num_frames": 4, "frames_indices": [0, 1, 2, 3]}
    return {**taken, "video_backend": "opencv"}


@pytest.mark.parametrize(("family", "keep"), VIDEOS, ids=str)
def test_videos_equal_attach(tmp_path, family, keep):
    import numpy as np

    method, folder = Script(keep=keep), checkpoints.save(family, tmp_path / family)
    limits = {"image": int(not isinstance(keep, Budget)), "video": 1}  # a budget per frame says nothing of images
    llm = engine.start(folder, method, limits=limits, max_num_seqs=4)
    frames = [np.stack([np.asarray(picture(10 * i + frame, (32, 32))) for frame in range(4)]) for i in range(3)]
    with_facts = family in ("qwen2_5_vl", "qwen3_vl")
    asks = [Ask(question(i), videos=((one, facts(8.0)) if with_facts else one,)) for i, one in enumerate(frames)]
    want = [engine.expected(folder, method, ask) for ask in asks]
    assert engine.answers(llm, asks, checkpoints.reference(folder)[1]) == want
    del llm
    gc.collect()


def test_keeping_all_equals_vllm_itself(tmp_path):
    """Pictures and slow videos, whose positions in time reach far."""
    import numpy as np

    folder, found = checkpoints.save("qwen2_5_vl", tmp_path / "qwen2_5_vl"), []
    film = np.stack([np.asarray(picture(frame, (32, 32))) for frame in range(4)])
    asks = [Ask(question(0), (picture(5, (40, 70)),)), Ask(question(1), videos=((film, facts(2.0)),))]
    for own in ({}, {"hf_overrides": {}}):
        llm = engine.start(folder, Script(keep=1.0), limits={"image": 1, "video": 1}, max_num_seqs=4, **own)
        found.append(engine.answers(llm, asks, checkpoints.reference(folder)[1]))
        del llm
        gc.collect()
    assert found[0] == found[1]


def test_a_method_inside_the_llm_is_refused_by_name(folders):
    with pytest.raises(ValueError, match="method='fastv': chooses inside the LLM"):
        engine.start(folders["llava"], get_method("fastv", keep=6))


def test_a_budget_that_follows_the_image_is_refused(folders):
    method = get_method("script_plus", keep=Budget(adaptive=0.1, mean=8))
    with pytest.raises(ValueError, match="must know the number of tokens before"):
        engine.start(folders["llava"], method)


def test_methods_that_do_not_look_at_the_question_share_their_entries(folders):
    llm = engine.start(folders["llava"], Random(keep=6))
    processor = checkpoints.reference(folders["llava"])[1]
    own = llm.llm_engine.input_processor.renderer.mm_processor
    items = own.info.parse_mm_data({"image": [picture(0)]})
    asked = [Ask(question(i), (picture(0),)).prompt(processor)["prompt"] for i in range(2)]
    hashes = {own(prompt, items)["mm_hashes"]["image"][0] for prompt in asked}
    assert len(hashes) == 1
    del llm
    gc.collect()
