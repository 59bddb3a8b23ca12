"""Headless Chromium through its pipe for developers: what a page logs, asks for, and looks like."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


class Browser:
    """One page of a browser of its own; `events` are all that it has told so far."""

    def __init__(self) -> None:
        self.home = tempfile.mkdtemp(prefix="chromium-")
        (to_browser, self.write), (self.read, from_browser) = os.pipe(), os.pipe()

        def hand_over() -> None:  # the browser reads commands from 3 and answers to 4
            high = [os.dup(fd) for fd in (to_browser, from_browser)]
            for fd, place in zip(high, (3, 4)):
                os.dup2(fd, place)

        self.process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={self.home}", "--remote-debugging-pipe", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=hand_over,
        )  # fmt: skip
        for fd in (to_browser, from_browser):
            os.close(fd)
        self.buffer, self.number, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *problem: object) -> None:
        self.process.kill()
        self.process.wait(20)
        for fd in (self.read, self.write):
            os.close(fd)
        shutil.rmtree(self.home, ignore_errors=True)

    def open(self, file: Path, *, phone: bool = False, dark: bool = False) -> None:
        width, height, scale = (390, 844, 2) if phone else (1280, 900, 1)
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        before = len(self.events)
        self.call("Page.navigate", url=file.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[before:]):
            self._message()

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, whole: bool = False) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])

    def told(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event["params"] for event in self.events if event["method"] == method]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        number, end = self.number, time.monotonic() + 60
        while time.monotonic() < end:
            answer = self._message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise TimeoutError(method)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.read, 1 << 16)
            if not part:
                raise RuntimeError("chromium has ended")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message
