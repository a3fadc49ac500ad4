"""How the page looks: nothing is cut off from a phone to a large screen, light and dark; labels for screen readers."""

import pytest

from tests.integrations.studio.actions import show_run, wait_for_count
from tests.integrations.studio.checks import faults, faults_at_rest

SIZES = {390: 844, 1280: 900, 1920: 1080}
TABS = {"Ask": "Answer with all tokens", "Compare": "Compare", "Explain": "Explain", "Take away": "Make code"}
SHOWS = {"Ask": "#costs table", "Compare": "#compared table", "Explain": "#steps li", "Take away": ".cm-content"}


def open_panel(tab, name):
    """Open a tab of the page, also where it is hidden behind "more tabs"."""
    named = tab.locator(f"[role=tab]:visible:text-is('{name}')")
    if named.count():
        named.first.click()
    else:
        tab.get_by_label("More tabs").click()
        tab.locator(f".overflow-dropdown button:text-is('{name}')").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_nothing_is_cut_off(open_tab, screenshots, tmp_path, width, scheme):
    tab = open_tab(width, SIZES[width], scheme)
    wait_for_count(tab, 64)
    tab.get_by_label("order of choice", exact=True).check()
    tab.wait_for_selector("#tokens figure.map")
    tab.evaluate("window.scrollTo(0, 0)")
    if width < 500:
        tab.locator("#tokens").evaluate("one => one.scrollIntoView()")
    tab.screenshot(path=screenshots / f"look-{width}-{scheme}.png")
    for name, button in TABS.items():
        open_panel(tab, name)
        tab.locator(f"button.primary:has-text('{button}'):visible").first.click()
        tab.wait_for_selector(f"{SHOWS[name]} >> visible=true")
        assert faults_at_rest(tab) == {}, name
        place = screenshots / f"{name.lower().replace(' ', '-')}-{width}-{scheme}.png"
        tab.screenshot(path=place, full_page=True)
    open_panel(tab, "Runs")
    show_run(tab, tmp_path)
    assert faults_at_rest(tab) == {}
    tab.screenshot(path=screenshots / f"runs-{width}-{scheme}.png", full_page=True)


def test_all_can_be_reached_by_the_keyboard(tab):
    wait_for_count(tab, 64)
    reached = set()
    tab.locator("body").click(position={"x": 5, "y": 5})
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate(
                "() => { const at = document.activeElement; return at.getAttribute('aria-label')"
                " || (at.labels && at.labels.length && at.labels[0].innerText.split('\\n')[0]) || at.innerText }"
            )
        )
    wanted = ("Upload file", "Question", "Method", "range slider for Tokens to keep", "kept", "Ask")
    assert {name for name in wanted if not any(str(one).startswith(name) for one in reached)} == set()
    assert any("Arrow keys move from token to token" in str(one) for one in reached)


def test_an_example_is_taken_by_the_keyboard(tab):
    wait_for_count(tab, 64)
    tab.get_by_role("gridcell").first.focus()
    for key, cell in (("ArrowRight", "0-1"), ("ArrowDown", "1-1"), ("ArrowDown", "2-1")):
        tab.keyboard.press(key)
        tab.wait_for_selector(f"[data-testid=dataset-cell-{cell}]:focus")
    tab.keyboard.press("Enter")
    tab.wait_for_function("() => document.querySelector('textarea').value == 'what color is the square?'")


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<div style='overflow: hidden'><p style='width: 900px'>{words}</p></div>", "cut off by DIV."),
        ("<div style='overflow: hidden; width: 90px'><p style='white-space: nowrap'>{words}</p></div>", "cut off by"),
        ("<div style='overflow: clip'><img width=900 height=9 alt=''></div>", "cut off by DIV.: IMG"),
        ("<div style='width: 900px; overflow: auto'><p>{words}</p></div>", "beyond the window"),
        ("<div style='overflow: auto'><p style='width: 900px'>{words}</p></div>", "scrolls unnamed"),
        ("<div style='overflow: auto' {named}><p style='width: 900px'>{words}</p></div>", ""),
        ("<p style='white-space: nowrap'>{words}</p>", "the page scrolls sideways"),
        ("<div style='overflow: hidden; width: 1px'><p style='width: 900px'>{words}</p></div>", ""),
        ("<p style='white-space: nowrap; overflow: hidden; text-overflow: ellipsis'>{words}</p>", ""),
        ("<p style='color: #bbb'>{words}</p>", "1.9 to 1"),
        ("<button style='width: 9px'></button>", "<button"),
    ],
)
def test_the_check_finds_what_is_wrong(browser, html, found):
    page = browser.new_page(viewport={"width": 390, "height": 200})
    named = "tabindex=0 role=region aria-label=words"
    page.set_content(f"<body style='background: white'>{html.format(words='many words ' * 20, named=named)}</body>")
    assert (found in str(faults(page))) if found else faults(page) == {}
    page.close()
