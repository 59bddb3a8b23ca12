"""Debian's Chromium without a screen, driven by its DevTools protocol over two pipes: nothing to install, no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    # A page that counts as covered paints no frames, and whoever waits for one waits for ever.
    "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-gpu-watchdog", "--disable-hang-monitor",  # a busy machine is slow, not hung
    "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60  # that anything may take, on a busy machine
DESK, PHONE = (1280, 900, 1), (390, 844, 2)  # width, height, pixels a point


class ChromiumError(AssertionError):
    """Chromium refused, ended, or did not answer in time; with what it said last."""


class Chromium:
    """One page. `events` are all that it told. After `seconds` a wait ends in an error, and all processes with it."""

    def __init__(self, *, phone: bool = False, dark: bool = False, seconds: float = SECONDS):
        assert CHROMIUM is not None
        self.events: list[dict[str, Any]] = []
        self.phone, self.seconds = phone, seconds
        self._buffer, self._number, self._session = b"", 0, None
        self._home = tempfile.mkdtemp(prefix="chromium-")
        self._log = Path(self._home, "stderr")
        commands, self._commands = os.pipe()  # it reads 3 and writes 4
        self._answers, answers = os.pipe()
        for end in (self._commands, self._answers):
            os.set_blocking(end, False)
        line = f'exec "$@" 3<&{commands} 4>&{answers}'
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", line, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={self._home}/profile", "about:blank"],
                pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                start_new_session=True,  # a group of its own, which can be ended whole
            )  # fmt: skip
        self.group = self._process.pid  # of all its processes
        os.close(commands)
        os.close(answers)
        try:
            self._attach()
            self.emulate(phone=phone, dark=dark)
        except BaseException:  # nobody will leave what was not entered
            self.close()
            raise

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """End all its processes and forget its profile; once more does nothing."""
        if not self._home:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._process.wait(20)
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self._home, ignore_errors=True)
        self._home = ""

    def emulate(self, *, phone: bool = False, dark: bool = False) -> None:
        """A phone with a touch screen, or a desk with a mouse; by day or by night."""
        self.phone = phone
        width, height, scale = PHONE if phone else DESK
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self("Emulation.setDeviceMetricsOverride", **screen)
        self("Emulation.setTouchEmulationEnabled", enabled=phone)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[theme])

    def open(self, path: Path, ready: str = "true") -> None:
        """Load a file, and wait until an expression is true."""
        before, end = len(self.events), time.monotonic() + self.seconds
        self("Page.navigate", url=path.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[before:]):
            self._next(end, f"{path} to load")
        self.wait(ready)

    def evaluate(self, expression: str) -> Any:
        done = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise ChromiumError(f"{expression}: {_error(done['exceptionDetails'])}")
        return done["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + self.seconds
        while not self.evaluate(f"!!({expression})"):
            if time.monotonic() > end:
                raise self._failed(f"{expression} was not true within {self.seconds:g} s; {self.complaints}")
            time.sleep(0.02)

    def frame(self) -> None:
        """Let the page paint what it was told."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def draw(self, element: str, strokes: Sequence[Sequence[tuple[float, float]]]) -> None:
        """Draw on a square element, with a finger on a phone and the mouse on a desk; points in parts of its side."""
        box = f"(({{ left, top, width }}) => [left, top, width])({element}.getBoundingClientRect())"
        left, top, side = self.evaluate(box)
        for stroke in strokes:
            points = [{"x": left + x * side, "y": top + y * side} for x, y in stroke]
            (self._finger if self.phone else self._mouse)(points)
        self.frame()

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, down and up."""
        for kind in ("keyDown", "keyUp"):
            told = {"text": text} if kind == "keyDown" and text else {}
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **told)
        self.frame()

    def screenshot(self, *, whole: bool = False) -> bytes:
        return base64.b64decode(self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])

    def told(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event["params"] for event in self.events if event["method"] == method]

    @property
    def asked(self) -> set[str]:
        """Addresses that it asked for, but for data within a page."""
        urls = {told["request"]["url"] for told in self.told("Network.requestWillBeSent")}
        return {url for url in urls if not url.startswith("data:")}

    @property
    def complaints(self) -> list[str]:
        """Uncaught errors, complaints in the console, and anything asked for beyond files."""
        thrown = [_error(told["exceptionDetails"]) for told in self.told("Runtime.exceptionThrown")]
        console = [json.dumps(told["args"])[:500] for told in self.told("Runtime.consoleAPICalled")
                   if told["type"] in ("error", "warning", "assert")]  # fmt: skip
        logged = [told["entry"]["text"] for told in self.told("Log.entryAdded")
                  if told["entry"]["level"] in ("error", "warning")]  # fmt: skip
        asked = [f"asked for {url}" for url in sorted(self.asked) if not url.startswith(("file:", "about:"))]
        return thrown + console + logged + asked

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        if not self._home:
            raise ChromiumError(f"{method}: the browser is closed")
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        end = time.monotonic() + self.seconds  # for the answer, however many events come before it
        self._write(json.dumps(message).encode() + b"\0", end, method)
        while (answer := self._next(end, f"the answer to {method}")).get("id") != self._number:
            pass
        if "error" in answer:
            raise ChromiumError(f"{method}: {answer['error']}")
        return answer["result"]

    def _attach(self) -> None:
        """Talk with the first page, once it is there."""
        end = time.monotonic() + self.seconds
        while not (pages := [t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page"]):
            if time.monotonic() > end:
                raise self._failed(f"no page within {self.seconds:g} s")
            time.sleep(0.02)
        self._session = self("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        self("Page.bringToFront")

    def _finger(self, points: list[dict[str, float]]) -> None:
        moves = [("touchMove", [point]) for point in points[1:]]
        for kind, at in [("touchStart", points[:1]), *moves, ("touchEnd", [])]:
            self("Input.dispatchTouchEvent", type=kind, touchPoints=at)

    def _mouse(self, points: list[dict[str, float]]) -> None:
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        moves = [("mouseMoved", point) for point in points[1:]]
        for kind, point in [("mousePressed", points[0]), *moves, ("mouseReleased", points[-1])]:
            self("Input.dispatchMouseEvent", type=kind, **point, **held)

    def _write(self, data: bytes, end: float, method: str) -> None:
        while data:
            _, writable, _ = select.select([], [self._commands], [], max(0, end - time.monotonic()))
            if not writable:
                raise self._failed(f"{method} was not read within {self.seconds:g} s")
            try:
                data = data[os.write(self._commands, data) :]
            except BrokenPipeError:
                raise self._failed(f"it ended before {method}") from None

    def _next(self, end: float, awaited: str) -> dict[str, Any]:
        """The next message, an event or an answer."""
        late = time.monotonic() > end  # a page that talks without end answers nothing either
        while late or b"\0" not in self._buffer:
            readable, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            if late or not readable:
                raise self._failed(f"{awaited} did not come within {self.seconds:g} s")
            some = os.read(self._answers, 1 << 20)
            if not some:
                raise self._failed(f"it ended instead of {awaited}")
            self._buffer += some
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        if message.get("method") in ("Inspector.targetCrashed", "Target.targetCrashed"):
            raise self._failed("the page crashed")
        return message

    def _failed(self, problem: str) -> ChromiumError:
        """What happened and what it wrote last; all its processes are ended."""
        state = self._process.poll()
        running = "still running" if state is None else f"ended with {state}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-5:] if self._log.exists() else []
        self.close()
        return ChromiumError("\n  ".join([f"chromium ({running}): {problem}", *last]))


def _error(details: dict[str, Any]) -> str:
    """Its name, its words and where it was thrown."""
    return str(details.get("exception", {}).get("description") or details["text"])
