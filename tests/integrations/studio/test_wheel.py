"""An installed wheel opens the studio without the checkout: its examples, its picture, and the text of the method."""

import pytest

from tests.integrations.studio.actions import wait_for_count
from tests.integrations.studio.program import opened_studio
from tests.support.wheel import environment, unpack_wheel


@pytest.fixture
def address(tmp_path):
    """Where `vlprune studio` of the wheel serves the page."""
    package = unpack_wheel(tmp_path)
    with opened_studio("-m", "vlprune", "studio", "--no-browser", cwd=tmp_path, env=environment(package)) as address:
        yield address


def test_a_wheel_opens_the_studio(browser, address):
    tab = browser.new_page()
    tab.set_default_timeout(60_000)
    tab.goto(address)
    tab.wait_for_selector("#tokens svg")
    wait_for_count(tab, 64)
    tab.locator("table img").nth(3).wait_for()  # the fourth example
    tab.get_by_role("tab", name="Explain").click()
    tab.get_by_role("button", name="Explain", exact=True).last.click()
    tab.wait_for_selector("#steps li")
    for link in tab.locator("#steps a").all():
        assert tab.locator(link.get_attribute("href")).count() == 1
    tab.close()
