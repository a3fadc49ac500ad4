"""The OpenAI server with the real client: every answer is checked against its own reference."""

import asyncio

import openai
import pytest
from PIL import Image

from tests.integrations.vllm import engine, server
from tests.integrations.vllm.checkpoints import picture, question
from tests.integrations.vllm.engine import NEW_TOKENS, Ask
from vlprune import Script

METHOD = Script(keep=6)
SETTINGS = {"method": "script", "keep": 6}


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with server.serving(folder, SETTINGS, log, "--trust-request-mm-kwargs") as found:
        yield found


@pytest.fixture(scope="module")
def client(address):
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=600)


def wanted(ask, **more):
    """The arguments of one chat completion."""
    extra = {"ignore_eos": True, "return_token_ids": True, **more}
    asked = {"model": "tiny", "messages": server.messages(ask), "temperature": 0, "max_tokens": NEW_TOKENS}
    return {**asked, "extra_body": extra}


def tokens(completion):
    return completion.choices[0].model_extra["token_ids"]


def some(count, start=0):
    """Requests with zero to three pictures; neighbours share a picture and differ in the question."""
    asks = []
    for i in range(start, start + count):
        pictures = tuple(picture(i // 2 + 10 * k, (60, 40 + i % 30)) for k in range((i % 10 != 9) * (1 + i % 3)))
        asks.append(Ask(question(i), pictures))
    return asks


@pytest.mark.parametrize("number", [0, 1, 2, 9], ids=["one image", "two", "three", "text alone"])
def test_a_chat_equals_attach(client, folder, number):
    ask = some(number + 1)[number]
    assert tokens(client.chat.completions.create(**wanted(ask))) == engine.expected(folder, METHOD, ask)


def test_a_stream_equals_attach(client, folder):
    ask, got = some(4)[3], []
    for part in client.chat.completions.create(**wanted(ask), stream=True):
        if part.choices:
            got += (part.choices[0].model_extra or {}).get("token_ids") or []
    assert got == engine.expected(folder, METHOD, ask)


def test_a_request_may_have_a_budget_of_its_own(client, folder):
    ask = some(1)[0]
    given = {"mm_processor_kwargs": {"vlprune": {"keep": 3}}}
    got = tokens(client.chat.completions.create(**wanted(ask, **given)))
    assert got == engine.expected(folder, Script(keep=3), ask) != engine.expected(folder, METHOD, ask)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (20, "keep=20: 20 tokens of this image, but the engine was started for at most 6"),
        (-1, "keep=-1: at least one token must be kept"),
        ("many", "keep='many': pass a number of tokens"),
    ],
)
def test_a_wrong_budget_is_a_400_that_says_why(client, keep, message):
    given = {"mm_processor_kwargs": {"vlprune": {"keep": keep}}}
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**wanted(some(1)[0], **given))


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (4000, 3)], ids=str)
def test_absurd_images_are_answered_or_refused_and_do_no_harm(client, folder, size):
    ask = Ask(question(1), (Image.new("RGB", size, "red"),))
    assert tokens(client.chat.completions.create(**wanted(ask))) == engine.expected(folder, METHOD, ask)


def test_what_is_no_image_is_a_400(client):
    broken = wanted(some(1)[0])
    broken["messages"][0]["content"][0]["image_url"]["url"] = "data:image/png;base64,aGVsbG8="
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**broken)


def test_an_image_without_a_question_is_a_400(client):
    with pytest.raises(openai.BadRequestError, match="no question was found"):
        client.chat.completions.create(**wanted(Ask("", (picture(0),))))


def test_two_hundred_at_once_with_some_that_leave(address, folder):
    """Mixed requests, every one against its own reference; in between, others hang up."""
    asks = some(200, start=40)
    want = [engine.expected(folder, METHOD, ask) for ask in asks]

    async def all_at_once():
        client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=900)

        async def leave(ask):
            stream = await client.chat.completions.create(**wanted(ask), stream=True)
            async for _ in stream:
                break
            await stream.close()

        async def answer(ask):
            return tokens(await client.chat.completions.create(**wanted(ask)))

        leaving = [asyncio.create_task(leave(ask)) for ask in some(20, start=300)]
        got = await asyncio.gather(*(answer(ask) for ask in asks))
        await asyncio.gather(*leaving)
        return got

    assert asyncio.run(all_at_once()) == want


def test_prometheus_counts_tokens_and_seconds(address, client):
    names = ("before_total", "after_total")
    before = [server.metric(address, f"vlprune_visual_tokens_{name}") for name in names]
    spent = server.metric(address, "vlprune_selection_seconds_total")
    client.chat.completions.create(**wanted(Ask(question(999), (picture(999), picture(998)))))
    after = [server.metric(address, f"vlprune_visual_tokens_{name}") for name in names]
    assert [now - then for now, then in zip(after, before)] == [50, 12]
    assert server.metric(address, "vlprune_selection_seconds_total") > spent > 0


def test_two_engines_behind_one_server_and_no_trust_in_requests(folder, tmp_path):
    """Data parallel; and without the server's leave, a budget in a request is a 400 and not a silent default."""
    with server.serving(folder, SETTINGS, tmp_path / "log", "--data-parallel-size", "2") as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=600)
        for ask in some(8, start=500):
            assert tokens(client.chat.completions.create(**wanted(ask))) == engine.expected(folder, METHOD, ask)
        given = {"mm_processor_kwargs": {"vlprune": {"keep": 3}}}
        with pytest.raises(openai.BadRequestError, match="trust-request-mm-kwargs"):
            client.chat.completions.create(**wanted(some(1)[0], **given))
