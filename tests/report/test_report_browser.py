"""The page in a real browser, where there is one: no complaints, no requests, nothing wider than the screen."""

from chromium_pipe import Chromium, needs_chromium

from lrnets.report import write_report


@needs_chromium
def test_it_opens_without_complaints_on_phone_and_desk_and_prints(ternary, tmp_path):
    file = write_report(ternary.path, tmp_path / "report.html", say=lambda text: None)
    with Chromium() as browser:
        for phone, dark in ((True, False), (False, True)):
            browser.emulate(phone=phone, dark=dark)
            browser.open(file)
            wide, screen = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert wide == screen == (390 if phone else 1280)
            grounds = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert grounds == ("rgb(23, 25, 28)" if dark else "rgb(253, 252, 250)")
            assert browser.evaluate("document.querySelectorAll('svg[role=img]').length") >= 4
        assert browser.pdf().startswith(b"%PDF")
        assert browser.asked == {file.as_uri()}
        assert browser.told("Log.entryAdded") == browser.told("Runtime.exceptionThrown") == []
        assert browser.told("Runtime.consoleAPICalled") == []
