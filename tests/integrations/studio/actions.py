"""What a user does on the page."""

import json
import re


def upload(tab, path):
    """Put a file in place of the image that is there, once that is shown."""
    tab.wait_for_function("() => document.querySelector('#sentence').innerText.startsWith('Kept')")
    before = tab.locator("#tokens image").get_attribute("href")
    with tab.expect_response(lambda response: "/upload" in response.url):
        remove = tab.get_by_label("Remove Image")
        if remove.count():
            remove.first.click()
            tab.wait_for_selector(".vlp-empty")
        tab.locator("input[type=file][accept*=image]").first.set_input_files(path)
    tab.wait_for_function(
        "old => { const now = document.querySelector('#tokens image');"
        " return (now && now.getAttribute('href') != old) || document.querySelector('.toast-message-text') }",
        arg=before,
    )


def ask_for(tab, question):
    """Write a question and press Enter."""
    box = tab.get_by_label("Question")
    box.fill(question)
    box.press("Enter")


def keep(tab, count):
    """Set the budget by its number."""
    box = tab.get_by_label("number input for Tokens to keep")
    box.fill(str(count))
    box.press("Enter")


def choose_method(tab, text):
    """Write a method into its field."""
    box = tab.get_by_role("combobox", name="Method")
    box.fill(text)
    box.press("Enter")


def wait_for_count(tab, count):
    """Wait until the sentence says that so many tokens are kept."""
    tab.wait_for_function("n => document.querySelector('#sentence').innerText.startsWith(`Kept ${n} of`)", arg=count)


def take_away(tab):
    """Make code and files, and wait for them; returns the code and the command line."""
    tab.get_by_role("tab", name="Take away").click()
    tab.get_by_role("button", name="Make code and files").click()
    tab.wait_for_selector("a[download='record.json'], a[href*='record.json']")
    code, line = (tab.locator(".cm-content").nth(i) for i in range(2))
    code.filter(has_text="print(").wait_for()
    line.filter(has_text="vlprune").wait_for()
    return code.inner_text(), line.inner_text()


def kept_tokens(tab):
    """The tokens that the picture shows as kept."""
    return sorted(
        int(one) for one in tab.locator("#tokens rect.kept").evaluate_all("all => all.map(r => r.dataset.token)")
    )


def error_text(tab):
    """The sentence of the last error that is shown."""
    toast = tab.locator(".toast-message-text").last
    toast.wait_for()
    return re.sub(r"\s+", " ", toast.inner_text()).strip()


def show_run(tab, folder):
    """Give the open tab "Runs" the result of a run, which it shows as curves."""
    score = {"entering": 64.0, "accuracy": 0.9, "interval": [0.85, 0.94]}
    scores = {"script@64": score, "script@16": {**score, "entering": 16.0, "accuracy": 0.7}, "random@64": score}
    file = folder / "result.json"
    file.write_text(json.dumps({"data": {"scores": scores}}))
    tab.locator("input[type=file][accept*='.json']").set_input_files(file)
    tab.wait_for_selector(".vega-embed, [data-testid='native-plot'] canvas, canvas.marks, svg.marks")
