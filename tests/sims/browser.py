"""A headless Chromium for tests, driven over WebDriver with the standard library alone.

WebDriver is JSON over HTTP, and `chromedriver` speaks it: what these tests need of it is a page of code, and
no further dependency.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

_SECONDS: Final = 60
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"  # the standard's name of a reference to an element
_ARGUMENTS: Final = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--force-color-profile=srgb",
)
_ATTEMPTS: Final = 3  # to start a driver, which on a busy machine may die before it listens
KEYS: Final = {"Tab": "\ue004", "Left": "\ue012", "Right": "\ue014", "End": "\ue010", "Escape": "\ue00c"}


def missing() -> str | None:
    """Why there can be no browser here; None if there can."""
    found = {"chromium": _chromium(), "chromedriver": shutil.which("chromedriver")}
    names = [name for name, path in found.items() if path is None]
    return f"{' and '.join(names)} not installed: .ci/run installs both" if names else None


def _chromium() -> str | None:
    """Which of its names it goes by differs between systems."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One window."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
        self._session = ""
        capabilities = {
            "goog:chromeOptions": _options(),
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{found['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message']}")
        return answer

    def open(self, path: Path) -> None:
        """What the console and the network said of the page before is forgotten."""
        self.console()
        self.requests()
        self._call("POST", f"{self._session}/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of the body of a function in the page."""
        return self._call(
            "POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)}
        )

    def press(self, *keys: str) -> None:
        """Keys for whatever has the focus."""
        presses = [{"type": kind, "value": KEYS[key]} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keyboard", "actions": presses})

    def point(self, selector: str, *, x: float = 0.5, click: bool = False) -> None:
        """Move the pointer over an element, this part of its width from the left."""
        self.run(
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})",
            selector,
        )
        element = self._call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        width = self.run(
            "return document.querySelector(arguments[0]).getBoundingClientRect().width", selector
        )
        moves: list[dict[str, Any]] = [
            {"type": "pointerMove", "origin": element, "x": round((x - 0.5) * width), "y": 0, "duration": 0}
        ]
        if click:
            moves += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act({"type": "pointer", "id": "mouse", "actions": moves})

    def _act(self, actions: dict[str, Any]) -> None:
        self._call("POST", f"{self._session}/actions", {"actions": [actions]})

    def resize(self, width: int, height: int = 800) -> None:
        """Of the page itself: a window of Chromium cannot be as narrow as a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, **features: str) -> None:
        """What the system prefers, such as `color_scheme="dark"`."""
        named = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()
        ]
        self._devtools("Emulation.setEmulatedMedia", {"features": named})

    def scripts(self, *, on: bool) -> None:
        """Whether pages may run any, from the next one on."""
        self._devtools("Emulation.setScriptExecutionDisabled", {"value": not on})

    def screenshot(self, path: Path) -> None:
        """Of the whole page."""
        found = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
        path.write_bytes(base64.b64decode(found["data"]))

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        body = {"cmd": command, "params": parameters}
        return self._call("POST", f"{self._session}/goog/cdp/execute", body)

    def console(self) -> list[str]:
        """What was said since the last time; messages of the policy are among it."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last time."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            each["params"]["request"]["url"]
            for each in messages
            if each["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._call("DELETE", self._session)
        self._connection.close()


def _options() -> dict[str, Any]:
    # The sandbox of Chromium refuses to run as root, which is who tests are in a container.
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    return {"binary": _chromium(), "args": [*_ARGUMENTS, *root]}


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block, together with its driver."""
    driver = shutil.which("chromedriver")
    assert driver is not None and _chromium() is not None, missing()  # noqa: PT018
    process, port = started(driver)
    try:
        window = Browser(port)
        try:
            yield window
        finally:
            window.close()
    finally:
        process.terminate()
        process.communicate(timeout=_SECONDS)


def started(driver: str) -> tuple[subprocess.Popen[str], int]:
    """Start the driver and return it with its port. Raises `RuntimeError` if every attempt dies."""
    for _ in range(_ATTEMPTS):
        process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        if (port := _port(process)) is not None:
            return process, port
        process.communicate(timeout=_SECONDS)
    raise RuntimeError(f"chromedriver did not start in {_ATTEMPTS} attempts: status {process.returncode}")


def _port(process: subprocess.Popen[str]) -> int | None:
    """Return the port that the driver prints when it listens; None if it ended before."""
    assert process.stdout is not None
    for line in process.stdout:
        if "started successfully on port" in line:
            return int(line.rstrip(".\n").rpartition(" ")[2])
    return None
