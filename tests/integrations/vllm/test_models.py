"""Every family in a real engine: greedy tokens equal those of `attach` on the same weights."""

import gc

import pytest

from tests.integrations.vllm import checkpoints, engine
from tests.integrations.vllm.checkpoints import picture, question
from tests.integrations.vllm.engine import Ask
from vlprune import Script

METHOD = Script(keep=6)
SIZES = ((60, 44), (40, 70), (64, 64), (90, 40))
#: vLLM tiles every image; LLaVA-OneVision in transformers does not tile several of one prompt.
ONE_IMAGE_ONLY = ("llava_onevision",)


@pytest.fixture(scope="module", params=checkpoints.NAMES)
def served(request, tmp_path_factory):
    """A checkpoint and its engine."""
    engine.keep_every_newline()
    folder = checkpoints.save(request.param, tmp_path_factory.mktemp("checkpoints") / request.param)
    no_video = {} if request.param in ("llava", "llava_next") else {"video": 0}
    llm = engine.start(folder, METHOD, limits={"image": 3, **no_video})
    yield folder, llm
    del llm
    gc.collect()


def mixed(name, count):
    """Requests that differ in picture, size, question and number of pictures; some share a picture, some have none."""
    asks = []
    for i in range(count):
        size = SIZES[i % len(SIZES)]
        pictures = (picture(i // 3, size),)
        if i % 5 == 3 and name not in ONE_IMAGE_ONLY:
            pictures += (picture(100 + i, SIZES[(i + 1) % len(SIZES)]),)
        asks.append(Ask(question(i, length=3 + i % 6), () if i % 8 == 7 else pictures))
    return asks


def test_thirty_two_mixed_requests_equal_attach(served):
    folder, llm = served
    _, processor = checkpoints.reference(folder)
    asks = mixed(folder.rsplit("/", 1)[-1], 32)
    want = [engine.expected(folder, METHOD, ask) for ask in asks]
    assert engine.answers(llm, asks, processor) == want
    assert len({tuple(tokens) for tokens in want}) > 24  # the questions matter: answers differ


def test_one_request_equals_attach(served):
    folder, llm = served
    _, processor = checkpoints.reference(folder)
    ask = Ask(question(50), (picture(50),))
    assert engine.answers(llm, [ask], processor) == [engine.expected(folder, METHOD, ask)]
