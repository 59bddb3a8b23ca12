"""The page in a real browser, where there is one: no complaints, no requests, nothing wider than the screen."""

import pytest
from report_browser import CHROMIUM, Browser

from lrnets.report import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def test_it_opens_without_complaints_on_phone_and_desk_and_prints(ternary, tmp_path):
    file = write_report(ternary.path, tmp_path / "report.html", say=lambda text: None)
    with Browser() as browser:
        for phone, dark in ((True, False), (False, True)):
            browser.open(file, phone=phone, dark=dark)
            wide, screen = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert wide == screen == (390 if phone else 1280)
            grounds = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert grounds == ("rgb(23, 25, 28)" if dark else "rgb(253, 252, 250)")
            assert browser.evaluate("document.querySelectorAll('svg[role=img]').length") >= 4
        assert browser.pdf().startswith(b"%PDF")
        asked = {request["request"]["url"] for request in browser.told("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith("data:image/png")} == {file.as_uri()}
        assert browser.told("Log.entryAdded") == browser.told("Runtime.exceptionThrown") == []
        assert browser.told("Runtime.consoleAPICalled") == []
