"""The ways people call a model: pipelines, streamers, servers, trainers, copies on disk, models that share a part."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
    TextIteratorStreamer,
    Trainer,
    TrainingArguments,
    pipeline,
)

from tests.support import tiny_llava as tiny
from vlprune import FastV, Random, Script, VisionZip, attach

GREEDY = {"do_sample": False, "max_new_tokens": 4}
TIMEOUT = 60


def question(text="what color is the cat ?"):
    from PIL import Image

    image = Image.fromarray(tiny.picture(0).permute(1, 2, 0).numpy())
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]


def test_the_image_text_pipeline(model, processor):
    """`pipeline` hands the model's generate what the processor makes."""
    inputs = processor.apply_chat_template(
        question(), add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    with attach(model, Script(keep=9), processor=processor) as pruner:
        new = model.generate(**inputs, **GREEDY)[0, inputs["input_ids"].shape[1] :]
        ask = pipeline("image-text-to-text", model=model, processor=processor)
        found = ask(text=question(), return_full_text=False, generate_kwargs=GREEDY)
        assert pruner.last.after == 9
    assert found[0]["generated_text"].split() == processor.decode(new, skip_special_tokens=True).split()


def test_a_streamer_in_a_thread(model, processor, single):
    with attach(model, Random(keep=9)) as pruner:
        whole = model.generate(**single, **GREEDY)[0, single["input_ids"].shape[1] :]
        streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, timeout=TIMEOUT)
        thread = threading.Thread(target=model.generate, kwargs={**single, **GREEDY, "streamer": streamer})
        thread.start()
        said = "".join(streamer)
        thread.join(TIMEOUT)
        assert pruner.last.after == 9
    assert said == processor.decode(whole)


def test_the_way_of_transformers_serve(model, processor, single):
    """Its server calls generate on a thread of its own, with a streamer or without."""
    serving = pytest.importorskip("transformers.cli.serving.utils")
    manager, settings = serving.GenerateManager(), GenerationConfig(**GREEDY, pad_token_id=0)

    async def serve():
        queue, _ = manager.generate_streaming(model, processor, single, settings, "one")
        pieces = []
        while (piece := await asyncio.wait_for(queue.get(), TIMEOUT)) is not None:
            assert isinstance(piece, str), piece
            pieces.append(piece)
        return "".join(pieces), await manager.generate_non_streaming(model, processor, single, settings, "two")

    with attach(model, Script(keep=9), processor=processor) as pruner:
        expected = model.generate(**single, **GREEDY)[0, single["input_ids"].shape[1] :]
        streamed, (text, length, ids) = asyncio.run(serve())
        assert pruner.last.after == 9
    assert torch.equal(ids, expected)
    assert length == single["input_ids"].shape[1]
    assert streamed.split() == text.split() == processor.decode(expected, skip_special_tokens=True).split()


# --- training ---


def train(model, batch, folder, checkpointing):
    """The weights after two steps of the Trainer on one batch."""
    batch = {name: value.cpu() for name, value in batch.items()}
    rows = [{name: value[0] for name, value in batch.items()}] * 2
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=1,
        learning_rate=1e-2,
        save_steps=2,
        gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None,
        report_to=[],
        disable_tqdm=True,
        use_cpu=model.device.type == "cpu",
        remove_unused_columns=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    model.eval()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def test_the_trainer_with_gradient_checkpointing(model, processor, single, tmp_path):
    """It trains on the shortened prompts, and comes to the same weights as without checkpointing."""
    batch = {**single, "labels": single["input_ids"].masked_fill(single["input_ids"] == tiny.IMAGE, -100)}
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    found = {}
    for checkpointing in (False, True):
        model.load_state_dict({**model.state_dict(), **before})
        with attach(model, Script(keep=9), processor=processor) as pruner:
            found[checkpointing] = train(model, batch, tmp_path / str(checkpointing), checkpointing)
            assert pruner.last.after == 9
    for name, value in found[False].items():
        torch.testing.assert_close(found[True][name], value, msg=name)
    assert any(not torch.equal(value, before[name]) for name, value in found[True].items())
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "True" / "checkpoint-2").to(model.device)
    assert all(torch.equal(value, found[True][name]) for name, value in saved.named_parameters())


def test_methods_inside_the_llm_refuse_gradient_checkpointing(model, single, tmp_path):
    batch = {**single, "labels": single["input_ids"]}
    words = r"^fastv cannot drop tokens with gradient checkpointing: switch it off\.$"
    with attach(model, FastV(keep=9)), pytest.raises(ValueError, match=words):
        train(model, batch, tmp_path, True)


# --- copies and shared parts ---


def test_saving_while_attached(model, single, tmp_path):
    """What is saved is the plain model, and saving takes nothing from the attached one."""
    plain = model.generate(**single, **GREEDY)
    with attach(model, Random(keep=9)) as pruner:
        pruned = model.generate(**single, **GREEDY)
        model.save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "state.pt")
        assert torch.equal(model.generate(**single, **GREEDY), pruned)
        assert pruner.last.after == 9
    again = AutoModelForImageTextToText.from_pretrained(tmp_path).to(model.device)
    assert torch.equal(again.generate(**single, **GREEDY), plain)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize("method", [Script(keep=9), VisionZip(keep=9)], ids=lambda method: method.name)
def test_two_models_that_share_a_tower(model, processor, device, method):
    """Each prunes as if it were alone, in threads too: no pruner sees the other's pass through the tower."""
    other = tiny.llava(seed=1).to(device)
    other.model.vision_tower = model.model.vision_tower
    texts = ["what color is the cat ?", "how many dogs ?", "where is the big red dog ?"]
    prompts = [tiny.inputs(processor, [text], [1], device, seed=i) for i, text in enumerate(texts)]

    def call(job):
        one, number = job
        return one.generate(**prompts[number], **GREEDY)

    jobs = [(one, number) for _ in range(8) for number in range(3) for one in (model, other)]
    alone = {}
    for one in (model, other):
        with attach(one, method, processor=processor, cache_bytes=0):
            alone |= {(one, number): call((one, number)) for number in range(3)}
    with attach(model, method, processor=processor, cache_bytes=0) as first:
        with attach(other, method, processor=processor, cache_bytes=0), ThreadPoolExecutor(4) as pool:
            found = [future.result(TIMEOUT) for future in [pool.submit(call, job) for job in jobs]]
        model.generate(**prompts[0], **GREEDY)  # the other's end leaves this one attached
        assert first.last.after == 9
    assert all(torch.equal(one, alone[job]) for one, job in zip(found, jobs))
