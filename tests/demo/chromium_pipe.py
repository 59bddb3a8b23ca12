"""Debian's Chromium without a screen, driven by its DevTools protocol over two pipes: nothing to install, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 120  # a busy machine


class Chromium:
    """One page. Complaints of its console, uncaught errors and refused loads gather in `complaints`."""

    def __init__(self, profile: Path, *, width: int = 390, height: int = 844, scale: float = 1, touch: bool = False):
        assert CHROMIUM is not None
        commands, self._commands = os.pipe()  # it reads 3 and writes 4
        self._answers, answers = os.pipe()
        line = f'exec "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=touch)
        self("Emulation.setTouchEmulationEnabled", enabled=touch)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        os.close(self._commands)
        os.close(self._answers)

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def open(self, path: Path, ready: str) -> None:
        """A file, until an expression is true."""
        self("Page.navigate", url=path.as_uri())
        self.wait(ready)

    def evaluate(self, expression: str) -> Any:
        done = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < end, f"{expression} did not come true; {self.complaints}"
            time.sleep(0.02)

    def frame(self) -> None:
        """Let the page paint what it was told."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert readable, f"chromium said nothing for {SECONDS} s"
            some = os.read(self._answers, 1 << 20)
            assert some, "chromium ended"
            self._buffer += some
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"])[:500])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"]["text"])
            case "Network.requestWillBeSent" if not told["request"]["url"].startswith(("file:", "data:", "about:")):
                self.complaints.append(f"asked for {told['request']['url']}")
            case _:
                pass
