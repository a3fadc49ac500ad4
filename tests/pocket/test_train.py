"""Training: the quick forward it uses is the model's own, it resumes where it stopped, and its export loads."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from vlprune.pocket import train
from vlprune.pocket.render import paint_scenes


@pytest.fixture(scope="module")
def pocket_model():
    torch.manual_seed(0)
    return train.PocketModel().eval()


@torch.no_grad()
def test_training_forward_is_llava_s_own(pocket_model):
    batch = train.make_batch("train", 2, 0)
    pixels = paint_scenes(batch["things"], batch["background"], torch.randn(2, 192, 192))
    patches, image = pocket_model.encode_image(pixels)
    kept = torch.arange(train.TOKENS).expand(2, -1)
    logits = pocket_model.answer_logits(
        patches, batch["text"], train.make_positions(kept, train.TEXT_LENGTH, True), batch["asked"]
    )
    start = torch.tensor([train.BOS, train.WORD_ID["user:"]]).expand(2, 2)
    ids = torch.cat([start, torch.full((2, train.TOKENS), train.IMAGE), batch["text"]], 1)
    own = pocket_model.llava(input_ids=ids, pixel_values=pixels).logits
    where = (batch["asked"] + 2 + train.TOKENS)[..., None].expand(-1, -1, own.shape[-1])
    torch.testing.assert_close(logits, own.gather(1, where))
    torch.testing.assert_close(image, pocket_model.clip.get_image_features(pixels).pooler_output)


def test_batches_ask_and_answer_in_place():
    batch = train.make_batch("train", 8, 1)
    for text, asked, answers in zip(batch["text"], batch["asked"], batch["answers"]):
        for place, answer in zip(asked[answers >= 0].tolist(), answers[answers >= 0].tolist()):
            assert text[place + 1] == answer
            assert text[place] == train.WORD_ID["assistant:"] or answer == train.EOS
    again = train.make_batch("train", 8, 1)
    assert all(torch.equal(batch[name], again[name]) for name in batch)


@pytest.mark.parametrize("k", [64, 192])
def test_kept_patches_are_sorted_and_distinct(k):
    torch.manual_seed(0)
    for _ in range(4):  # both patterns come up
        kept = train.sample_kept_patches(3, k, torch.device("cpu"))
        assert kept.shape == (3, k)
        assert (kept.diff(dim=1) > 0).all()
    original = train.make_positions(kept, 5, renumber=False)
    assert torch.equal(original[:, 2 : 2 + k], kept + 2)
    assert original[0, -5:].tolist() == [578, 579, 580, 581, 582]
    assert train.make_positions(kept, 5, renumber=True)[0].tolist() == list(range(2 + k + 5))


def test_training_resumes_and_exports(tmp_path, monkeypatch, capsys):
    def run(*more: str) -> None:
        words = [
            "train",
            "--batch",
            "2",
            "--workers",
            "0",
            "--no-compile",
            "--run",
            str(tmp_path / "run"),
            *more,
        ]
        monkeypatch.setattr(sys, "argv", words)
        train.main()

    run("--steps", "1")
    before = load_file(tmp_path / "run" / "checkpoint.safetensors")
    run("--steps", "2", "--export", str(tmp_path / "out"))
    after = load_file(tmp_path / "run" / "checkpoint.safetensors")
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
    assert any(not torch.equal(before[name], after[name]) for name in before if ":" not in name)
    assert any(name.startswith("exp_avg:") for name in after)
    assert "min left" in capsys.readouterr().out

    from transformers import AutoProcessor, LlavaForConditionalGeneration

    model = LlavaForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert torch.equal(model.lm_head.weight, after["llava.lm_head.weight"].bfloat16().float())
    AutoProcessor.from_pretrained(tmp_path / "out")
