"""How the page looks: nothing overflows from a phone to a large screen, light and dark; labels for screen readers."""

import pytest

from tests.integrations.studio.actions import wait_for_count

SIZES = {390: 844, 1280: 900, 1920: 1080}
TABS = {"Ask": "Answer with all tokens", "Compare": "Compare", "Explain": "Explain", "Take away": "Make code"}
SHOWS = {"Ask": "#costs table", "Compare": "#compared table", "Explain": "#steps li", "Take away": ".cm-content"}
#: Elements that reach beyond the window, but for those inside something that scrolls sideways by itself.
OVERFLOWING = """() => {
  const wide = document.documentElement.clientWidth, found = [];
  for (const one of document.body.querySelectorAll('*')) {
    const box = one.getBoundingClientRect();
    if (!box.width || box.right <= wide + 1) continue;
    let parent = one, scrolls = false;
    while ((parent = parent.parentElement)) {
      const style = getComputedStyle(parent);
      if (['auto', 'scroll', 'hidden'].includes(style.overflowX)) { scrolls = true; break; }
    }
    if (!scrolls) found.push(one.tagName + '.' + one.className);
  }
  return [document.documentElement.scrollWidth > wide, found.slice(0, 5)];
}"""
#: Controls that can be seen and have no name for a screen reader.
NAMELESS = """() => [...document.querySelectorAll(
    'input, textarea, button, select, svg[role=img]:not([aria-hidden]), [role=tab]')]
  .filter(one => one.offsetWidth || one.getBoundingClientRect().width)
  .filter(one => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.title
                   || one.innerText || (one.labels && one.labels.length)))
  .map(one => one.outerHTML.slice(0, 120))"""

#: Parts of our tables with a rule at their left or right.
VERTICAL_RULES = """() => [...document.querySelectorAll('.vlp-wide table, .vlp-wide table *')].filter(one => {
  const style = getComputedStyle(one);
  return parseFloat(style.borderLeftWidth) || parseFloat(style.borderRightWidth);
}).map(one => one.tagName)"""


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
def test_nothing_overflows(open_tab, screenshots, width, scheme):
    tab = open_tab(width, SIZES[width], scheme)
    wait_for_count(tab, 64)
    tab.get_by_label("order of choice", exact=True).check()
    tab.wait_for_selector("#tokens figure.map")
    tab.locator("#tokens" if width < 500 else "h1").first.evaluate("one => one.scrollIntoView()")
    tab.screenshot(path=screenshots / f"look-{width}-{scheme}.png")
    for name, button in TABS.items():
        open_panel(tab, name)
        tab.locator(f"button.primary:has-text('{button}'):visible").first.click()
        tab.wait_for_selector(f"{SHOWS[name]} >> visible=true")
        tab.wait_for_timeout(300)
        assert tab.evaluate(OVERFLOWING) == [False, []], name
        assert tab.evaluate(NAMELESS) == [], name
        assert tab.evaluate(VERTICAL_RULES) == [], name
        place = screenshots / f"{name.lower().replace(' ', '-')}-{width}-{scheme}.png"
        tab.screenshot(path=place, full_page=True)


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
