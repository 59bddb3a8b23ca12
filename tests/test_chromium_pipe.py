"""The driver of the browser: whatever the page does, a wait ends, says why, and leaves no process behind."""

import os
import time

import pytest
from chromium_pipe import Chromium, ChromiumError, needs_chromium

pytestmark = needs_chromium
TALKS = "const talk = () => { console.log('and'); setTimeout(talk, 0); }; talk(); new Promise(() => {})"


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (lambda browser: browser.evaluate("new Promise(() => {})"), "the answer to Runtime.evaluate did not come"),
        (lambda browser: browser.evaluate(TALKS), "the answer to Runtime.evaluate did not come within 1 s"),
        (lambda browser: browser.wait("document.title === 'never'"), "'never' was not true within 1 s"),
        (lambda browser: browser("Page.crash"), "the page crashed"),
        (lambda browser: browser("Browser.crash"), "it ended instead of"),
    ],
)
def test_a_wait_ends_with_a_clear_error_and_all_processes(problem, told):
    with Chromium() as browser:
        group, browser.seconds, start = browser.group, 1, time.monotonic()
        assert processes(group) > 1
        with pytest.raises(ChromiumError, match=told):
            problem(browser)
        assert time.monotonic() - start < 20
        while processes(group) and time.monotonic() - start < 20:
            time.sleep(0.01)  # what was killed takes a moment to go
        assert processes(group) == 0
        with pytest.raises(ChromiumError, match="closed"):
            browser.evaluate("1")


def test_complaints_are_gathered_and_errors_of_the_page_are_raised(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<script>console.warn('a'); console.log('b'); missing()</script><img src='http://localhost:9/c.png'>"
    )
    with Chromium() as browser:
        browser.open(page)
        assert browser.asked == {page.as_uri(), "http://localhost:9/c.png"}
        text = "\n".join(browser.complaints)
        assert all(part in text for part in ('"a"', "missing is not defined", "asked for http://localhost:9/c.png"))
        assert '"b"' not in text
        with pytest.raises(ChromiumError, match="nowhere is not defined"):
            browser.evaluate("nowhere")
        assert browser.evaluate("1 + 1") == 2  # and it goes on


def processes(group: int) -> int:
    """How many are in a group; those that ended and wait for their parent do not count."""
    found = 0
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat") as file:
                state, _, of = file.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        found += int(of) == group and state != "Z"
    return found
