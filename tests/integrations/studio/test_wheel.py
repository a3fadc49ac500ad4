"""An installed wheel opens the studio without the checkout: its examples, its picture, and the text of the method."""

import re
import subprocess
import sys

import pytest

from tests.integrations.studio.actions import wait_for_count
from tests.support.wheel import environment, unpack_wheel


@pytest.fixture
def address(tmp_path):
    """Where `vlprune studio` of the wheel serves the page."""
    package = unpack_wheel(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "vlprune", "studio", "--no-browser"],
        cwd=tmp_path,
        env=environment(package),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"the studio is open at (\S+)", line)
        if found:
            break
    else:
        pytest.fail("".join(lines))
    yield found[1]
    process.terminate()
    process.wait(timeout=30)


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
