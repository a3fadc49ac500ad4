"""What a user does on the page, and that it is what the library gives."""

import json
from urllib.parse import urlsplit

import pytest
from PIL import Image

from tests.integrations.studio.actions import (
    ask_for,
    choose_method,
    keep,
    kept_tokens,
    show_run,
    take_away,
    upload,
    wait_for_count,
)
from vlprune import Script, attach, pocket


@pytest.fixture(scope="module")
def reference():
    """A function from an image's path, a question and a method to the library's answer and kept tokens."""
    model, processor, clip = pocket.load()

    def ask(path, question, method):
        with attach(model, method, processor=processor, dual_encoder=clip) as pruner:
            answer = pruner.ask_many(path, [question], max_new_tokens=64, do_sample=False)[0]
        return answer, pruner.last

    return ask


@pytest.fixture
def tower_runs(server):
    """How often the vision tower ran, as a list that grows."""
    runs = []
    tower = server.loaded.model.model.vision_tower
    handle = tower.register_forward_hook(lambda *_: runs.append(1))
    yield runs
    handle.remove()


def test_it_opens_with_an_example_and_asks_nobody_else(tab, server):
    assert tab.title() == "vlprune studio"
    wait_for_count(tab, 64)
    hosts = {urlsplit(url).hostname for url in tab.requested if url.startswith(("http", "ws"))}
    assert hosts == {"127.0.0.1"}


def test_upload_and_move_the_slider_without_the_tower(tab, scene, reference, tower_runs):
    path, question, _ = scene
    ask_for(tab, question)
    upload(tab, path)
    wait_for_count(tab, 64)
    assert kept_tokens(tab) == reference(path, question, Script(keep=64))[1].kept.tolist()
    ran = len(tower_runs)
    for count in (16, 200):
        keep(tab, count)
        wait_for_count(tab, count)
        assert kept_tokens(tab) == reference(path, question, Script(keep=count))[1].kept.tolist()
    slider = tab.get_by_label("range slider for Tokens to keep")
    slider.focus()
    slider.press("ArrowLeft")
    wait_for_count(tab, 199)
    assert len(tower_runs) == ran


def test_a_call_that_is_late_does_not_take_back_a_later_one(tab):
    wait_for_count(tab, 64)
    late = []
    tab.route("**/queue/join*", lambda route: route.continue_() if late else late.append(route))
    with tab.expect_request("**/queue/join*"):
        ask_for(tab, "what color is the square?")
    keep(tab, 32)
    tab.wait_for_timeout(1_000)  # in which the second call may overtake the first one
    late[0].continue_()
    wait_for_count(tab, 32)
    assert "Script(keep=32)" in take_away(tab)[0]


def test_maps_and_the_order_of_choice(tab):
    wait_for_count(tab, 64)
    for name in ("relevance", "redundancy", "order of choice"):
        tab.get_by_label(name, exact=True).check()
        tab.wait_for_selector(f"#tokens .vlp-legend:has-text('{name}')")
        tab.wait_for_selector("#tokens figure.map")
    tab.get_by_label("kept", exact=True).check()
    tab.wait_for_selector("#tokens figure.plain")
    play = tab.get_by_label("number input for Play the choices")
    play.fill("5")
    play.press("Enter")
    tab.wait_for_function("() => document.querySelectorAll('#tokens rect.gone').length == 571")


def test_pointer_and_keyboard_show_a_tokens_numbers_and_compare_two(tab):
    wait_for_count(tab, 64)
    tab.locator('#tokens rect[data-token="100"]').hover()
    caption = tab.locator("#tokens figcaption")
    assert caption.inner_text().startswith("token 100 · row 5, column 5")
    assert "relevance" in caption.inner_text()
    tab.locator("#tokens svg").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        tab.keyboard.press(key)
    assert caption.inner_text().startswith("token 26 ")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#tokens .picked")
    tab.locator('#tokens rect[data-token="27"]').click()
    tab.wait_for_function("() => document.querySelector('#pair').innerText.includes('Tokens 26 and 27: cosine')")
    assert "graph" in tab.locator("#pair").inner_text()


def test_ask(tab, scene, reference):
    path, question, _ = scene
    upload(tab, path)
    ask_for(tab, question)
    tab.get_by_role("button", name="Answer with all tokens").click()
    tab.wait_for_selector("#costs table")
    answers = tab.locator("#answers .said").all_inner_texts()
    assert answers == [reference(path, question, Script(keep=1.0))[0], reference(path, question, Script(keep=64))[0]]
    rows = {row.split("\t")[0].strip(): row.split("\t")[1:] for row in tab.locator("#costs tr").all_inner_texts()}
    assert [cell.strip() for cell in rows["visual tokens"]] == ["576", "64"]
    assert {"KV cache", "LLM FLOPs", "prefill"} <= set(rows)


def test_compare(tab):
    wait_for_count(tab, 64)
    tab.get_by_role("tab", name="Compare").click()
    tab.get_by_role("button", name="Compare", exact=True).last.click()
    tab.wait_for_selector("#compared p:has-text('IoU')")
    names = tab.locator("#compared h3").all_inner_texts()
    assert names == ["all tokens", "script", "script_plus", "cdpruner", "random"]
    overlaps = tab.locator("#compared table").last.locator("td").all_inner_texts()
    assert len(overlaps) == 16
    assert overlaps[0] == overlaps[5] == "1.00"


def test_explain(tab):
    wait_for_count(tab, 64)
    tab.locator('#tokens rect[data-token="300"]').click()
    tab.wait_for_selector("#tokens .picked")
    tab.get_by_role("tab", name="Explain").click()
    tab.get_by_role("button", name="Explain", exact=True).last.click()
    tab.wait_for_selector("#steps li")
    titles = tab.locator("#steps h3").all_inner_texts()
    assert titles == ["Graph", "Survivors", "Relevance", "Order of choice", "Fusion"]
    assert "Token 300" in tab.locator("#steps li").first.inner_text()
    for link in tab.locator("#steps a").all():  # each leads to its section
        assert tab.locator(link.get_attribute("href")).count() == 1


def test_take_away(tab, scene, tmp_path, reference):
    path, question, _ = scene
    upload(tab, path)
    ask_for(tab, question)
    keep(tab, 32)
    wait_for_count(tab, 32)
    code, line = take_away(tab)
    assert "Script(keep=32)" in code
    assert "--keep 32" in line
    files = {}
    for name in ("image.png", "kept.png", "kept.svg", "record.json"):
        with tab.expect_download() as download:
            tab.locator(f"a[download='{name}'], a[href*='{name}']").first.click()
        files[name] = tmp_path / name
        download.value.save_as(files[name])
    kept = reference(path, question, Script(keep=32))[1].kept.tolist()
    assert json.loads(files["record.json"].read_text())["tokens"]["kept"] == kept
    assert Image.open(files["image.png"]).tobytes() == Image.open(path).convert("RGB").tobytes()
    assert Image.open(files["kept.png"]).width > 500
    assert "<svg" in files["kept.svg"].read_text()


def test_a_finished_run(tab, tmp_path):
    tab.get_by_role("tab", name="Runs").click()
    show_run(tab, tmp_path)


def test_another_method_and_its_settings(tab, scene, reference):
    from vlprune import CDPruner

    path, question, _ = scene
    upload(tab, path)
    ask_for(tab, question)
    choose_method(tab, "cdpruner")
    tab.wait_for_function("() => !document.body.innerText.includes('redundancy')")
    wait_for_count(tab, 64)
    assert kept_tokens(tab) == reference(path, question, CDPruner(keep=64))[1].kept.tolist()
    choose_method(tab, "script:keep=9")
    wait_for_count(tab, 9)
