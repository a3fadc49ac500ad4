"""Engines with settings of their own: one lives at a time in this process."""

import gc
from dataclasses import replace

from tests.integrations.vllm import checkpoints, engine
from tests.integrations.vllm.checkpoints import picture, question
from tests.integrations.vllm.engine import Ask
from vlprune import Script

METHOD = Script(keep=9)


def test_without_the_question_in_the_hash_answers_go_wrong(folder, processor, monkeypatch):
    """The control: what the test above would see if vLLM hashed the image alone."""
    from vllm.multimodal.processing.inputs import ProcessorInputs

    own = ProcessorInputs.get_mm_hashes

    def without_question(self, *args):
        plain = {name: value for name, value in self.hf_processor_mm_kwargs.items() if name != "vlprune"}
        return own(replace(self, hf_processor_mm_kwargs=plain), *args)

    monkeypatch.setattr(ProcessorInputs, "get_mm_hashes", without_question)
    llm = engine.start(folder, METHOD)
    asks = engine.same_image(4)
    want = [engine.expected(folder, METHOD, ask) for ask in asks]
    assert [engine.answers(llm, [ask], processor)[0] for ask in asks] != want
    del llm
    gc.collect()


def test_the_cache_stays_within_its_bytes(folder, processor):
    item = 25 * checkpoints.WIDTH * 4
    llm = engine.start(folder, METHOD, cache_bytes=3 * item)
    asks = [Ask(question(i), (picture(i),)) for i in range(8)]
    assert engine.answers(llm, asks, processor) == [engine.expected(folder, METHOD, ask) for ask in asks]
    cache = engine.model_of(llm).item_encoder.cache
    assert len(cache) == 3
    assert cache.nbytes == 3 * item
    del llm
    gc.collect()


def test_the_tower_sees_no_more_patches_at_once_than_the_engine_tokens(folder, processor):
    """64 tokens a step let in seven images of nine tokens left, but the tower makes 25 patches of each."""
    llm = engine.start(folder, METHOD, max_num_batched_tokens=64, max_model_len=64, cache_bytes=0)
    sizes = []
    handle = engine.model_of(llm).vision_tower.register_forward_hook(lambda _, args, __: sizes.append(len(args[0])))
    asks = [Ask(question(i, length=2), (picture(i), picture(50 + i), picture(90 + i))) for i in range(4)]
    assert engine.answers(llm, asks, processor) == [engine.expected(folder, METHOD, ask) for ask in asks]
    handle.remove()
    assert sum(sizes) == 12
    assert max(sizes) == 2
    del llm
    gc.collect()


def test_prompts_in_pieces_and_preempted_give_the_same(tmp_path):
    """Positions in time, height and width too: a step takes 16 tokens, and the KV cache does not hold all requests."""
    folder = checkpoints.save("qwen2_5_vl", tmp_path / "qwen2_5_vl")
    processor = checkpoints.reference(folder)[1]
    options = {"max_num_batched_tokens": 16, "max_model_len": 96, "num_gpu_blocks_override": 6, "max_num_seqs": 8}
    llm = engine.start(folder, METHOD, limits={"image": 2, "video": 0}, disable_log_stats=False, **options)
    sizes = ((60, 44), (40, 70), (32, 96))
    asks = [Ask(question(i, length=12), (picture(i, sizes[i % 3]),)) for i in range(8)]
    want = [engine.expected(folder, METHOD, ask) for ask in asks]
    assert engine.answers(llm, asks, processor) == want
    preempted = sum(one.value for one in llm.get_metrics() if one.name == "vllm:num_preemptions")
    assert preempted > 0
    del llm
    gc.collect()
