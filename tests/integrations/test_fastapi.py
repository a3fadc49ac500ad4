"""The FastAPI example: many requests at once, each with its own answer. Needs fastapi, which the studio brings."""

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from tests.support.scripts import load_script

pytest.importorskip("fastapi")
pytest.importorskip("multipart", reason="needs python-multipart")
testclient = pytest.importorskip("fastapi.testclient")


@pytest.fixture(scope="module")
def served():
    from vlprune import pocket

    module = load_script("examples/fastapi_server.py")
    model, processor, clip = pocket.load()
    app = module.make_app(model, processor, 64, clip)
    with testclient.TestClient(app) as client:
        yield client, model


def files(seed):
    buffer = io.BytesIO()
    Image.effect_noise((192, 192), seed).convert("RGB").save(buffer, "PNG")
    return {"image": ("a.png", buffer.getvalue(), "image/png")}


def test_requests_at_once(served):
    client, _ = served
    pictures = [files(seed) for seed in (10, 50, 90)]
    questions = ["is there a red star?", "what color is the circle?", "how many squares are there?"]

    def ask(job):
        return client.post("/ask", files=pictures[job[0]], data={"question": questions[job[1]]}).json()

    jobs = [(i, j) for i in range(3) for j in range(3)]
    alone = {job: ask(job) for job in jobs}
    assert all(set(answer) == {"answer", "keep"} for answer in alone.values())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, jobs * 3))
    assert found == [alone[job] for job in jobs * 3]


def test_refusals(served):
    client, _ = served
    text = {"image": ("a.png", b"no image", "image/png")}
    assert client.post("/ask", files=text, data={"question": "what is it?"}).status_code == 422
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    huge = {"image": ("a.png", bomb.getvalue(), "image/png")}
    assert client.post("/ask", files=huge, data={"question": "what is it?"}).status_code == 422
    many = client.post("/ask?tokens=1000000000", files=files(1), data={"question": "what is it?"})
    assert many.status_code == 422
    said = client.post("/ask", files=files(1), data={"question": " "})
    assert said.status_code == 422
