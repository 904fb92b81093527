"""A real browser for tests: a headless Chromium, driven by its DevTools protocol.

Why not playwright or selenium: a dozen commands are needed, and Debian brings the browser.

    with browsing(chromium) as page:
        page.open("http://127.0.0.1:8000/")
        assert page.evaluate("document.title") == "..."
"""

import base64
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import SECONDS, eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_KEYS = {"Tab": 9, "Enter": 13, "ArrowUp": 38, "ArrowDown": 40}
_AXE = """axe.run({{{}resultTypes: ['violations']}}).then(({{violations}}) =>
    violations.map((one) => [one.id, ...one.nodes.map((node) => node.html)]))"""
_OF_COLOURS = "runOnly: ['color-contrast', 'link-in-text-block'], "
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    "--remote-debugging-pipe",
    # A window would load the first two, which suggest addresses: half a second of processor time. The others keep each
    # page that was left, and make a new frame for the next: a quarter of the time that opening one takes.
    *(
        "--no-startup-window",
        "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,BackForwardCache,RenderDocument",
    ),
    # Pages of tests are gone before what an optimizing compiler, or a thread that works ahead, has cost is earned back.
    *("--disable-threaded-animation", "--js-flags=--single-threaded --no-opt --no-maglev"),
)
_WITHOUT_PICTURES = "--disable-threaded-compositing"  # that thread takes them, and a tenth of all processor time
_NAVIGATED = ("navigated", "collected", "destroyed")
_LOOK_SECONDS = 0.03
# The page itself looks, which costs a fifth of the processor time that being asked again and again does.
_WAIT = """(async () => {
    const end = performance.now() + 10000;
    while (!(%s)) {
        if (performance.now() > end) return false;
        await new Promise((go) => setTimeout(go, 30));
    }
    return true;
})()"""


class _NavigatedError(Exception):
    """The page went away while it was asked."""


class _Connection:
    """The messages of a browser, each of which ends with a zero byte; a browser ends when its connection does."""

    def __init__(self, ours: socket.socket) -> None:
        ours.settimeout(SECONDS)
        self._socket = ours
        self._read = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\0")

    def receive(self) -> dict[str, Any]:
        """Wait for the next message; raise TimeoutError when none comes in time."""
        while (end := self._read.find(b"\0")) < 0:
            more = self._socket.recv(1 << 18)
            assert more, "the browser has ended"
            self._read += more
        message: dict[str, Any] = json.loads(self._read[:end])
        del self._read[: end + 1]
        return message


class Page:
    """One page in a tab; `errors` are exceptions of scripts, and what the Content-Security-Policy refused."""

    def __init__(
        self, connection: _Connection, first: "Page | None" = None, profile: dict[str, Any] | None = None
    ) -> None:
        self._connection = connection
        self._numbers: Iterator[int] = itertools.count(1) if first is None else first._numbers
        self._errors_of: dict[str | None, list[str]] = {} if first is None else first._errors_of
        self._session: str | None = None
        self._scripts: list[str] = []
        self._is_without_scripts = False
        self._profile: dict[str, Any] = profile or ({} if first is None else first._profile)
        self.errors: list[str] = [] if first is None or profile else first.errors
        target = self._do("Target.createTarget", url="about:blank", **self._profile)["targetId"]
        self._session = self._do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        # It is seen and has the focus, whichever tab is opened later; a window of its own costs more than a tab.
        self._do("Emulation.setFocusEmulationEnabled", enabled=True)
        self._errors_of[self._session] = self.errors
        for domain in ("Page", "Runtime", "Log"):
            self._do(f"{domain}.enable")

    def another(self) -> "Page":
        """Return one more page in the same browser, with the same `errors`."""
        return Page(self._connection, self)

    @contextmanager
    def elsewhere(self) -> "Iterator[Page]":
        """Open a page as a browser of its own would: it shares no worker, no storage and no `errors` with this one."""
        profile = self._call(None, "Target.createBrowserContext", {})
        try:
            yield Page(self._connection, self, profile)
        finally:
            self._call(None, "Target.disposeBrowserContext", profile)

    def close(self) -> None:
        """Close this page."""
        self._do("Page.close")

    def hide(self) -> None:
        """Set `document.hidden`, as in a tab that is not the selected one."""
        self.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true}) && 1")
        self.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def before_scripts(self, script: str) -> None:
        """Run a script in each page that is opened from now on, before its own scripts."""
        self._scripts.append(self._do("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"])

    def restore(self) -> None:
        """Make it a page of ordinary size and colours, which runs its scripts and no others."""
        while self._scripts:
            self._do("Page.removeScriptToEvaluateOnNewDocument", identifier=self._scripts.pop())
        self._do("Emulation.setScriptExecutionDisabled", value=False)
        self._is_without_scripts = False
        self.size(1280, 800)
        self.colours("light")

    def open(self, url: str) -> None:
        """Open an address and wait until its page has been read and its scripts have run."""
        self._do("Page.navigate", url=url)
        while not self.evaluate("location.href !== 'about:blank' && document.readyState === 'complete'"):
            self._await("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression; a promise is waited for."""
        outcome = self._do("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in outcome:
            details = outcome["exceptionDetails"]
            raise AssertionError(details.get("exception", details).get("description", details))
        return outcome["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true; the page may reload itself meanwhile."""

        def holds() -> bool:
            try:
                return bool(self.evaluate(script if self._is_without_scripts else _WAIT % script))
            except _NavigatedError:
                return False

        eventually(holds, f"it never came about: {script}", pause_seconds=_LOOK_SECONDS)

    def text(self, selector: str) -> str:
        """Return the text of an element as it is shown."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str) -> None:
        """Press a key: Tab, Enter, ArrowUp, ArrowDown or one character."""
        code = _KEYS.get(key, ord(key[0].upper()))
        text = "\r" if key == "Enter" else "" if key in _KEYS else key
        for kind in ("keyDown", "keyUp"):
            self._do(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip

    def size(self, width: int, height: int) -> None:
        """Set the size of the window in CSS pixels."""
        self._do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme: str) -> None:
        """Prefer `light` or `dark`."""
        self._do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def is_dark(self) -> bool:
        """Return whether text is brighter than what it is on."""
        colours = self.evaluate("['backgroundColor', 'color'].map((name) => getComputedStyle(document.body)[name])")
        paper, ink = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        return paper < ink

    def barriers(self) -> list[list[str]]:
        """Return what axe-core finds, rules with their elements: all rules in light, those about colours in dark."""
        self.evaluate(Path(os.environ["AXE_CORE"]).read_text() + "; true")
        found = []
        for scheme, rules in (("light", ""), ("dark", _OF_COLOURS)):
            self.colours(scheme)
            found += self.evaluate(_AXE.format(rules))
        return found

    def disable_scripts(self) -> None:
        """Run no script of a page from now on; `evaluate` goes on to work."""
        self._do("Emulation.setScriptExecutionDisabled", value=True)
        self._is_without_scripts = True

    def fits(self) -> bool:
        """Return whether nothing is wider than the window."""
        return bool(self.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as PNG; the browser is one that takes pictures."""
        path.write_bytes(base64.b64decode(self._do("Page.captureScreenshot", format="png")["data"]))

    def _do(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(self._session, method, parameters)

    def _call(self, session: str | None, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._connection.send(message)
        while True:
            answer = self._connection.receive()
            if answer.get("id") == number:
                if any(word in str(answer.get("error")) for word in _NAVIGATED):
                    raise _NavigatedError
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _await(self, method: str) -> None:
        """Wait for an event of this page."""
        while True:
            event = self._connection.receive()
            self._note(event)
            if (event.get("method"), event.get("sessionId")) == (method, self._session):
                return

    def _note(self, event: dict[str, Any]) -> None:
        parameters, errors = event.get("params", {}), self._errors_of.get(event.get("sessionId"), self.errors)
        if event.get("method") == "Runtime.exceptionThrown":
            errors.append(str(parameters["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["source"] in ("security", "violation"):
            errors.append(str(parameters["entry"]["text"]))


@contextmanager
def browsing(chromium: str, *, takes_pictures: bool = False) -> Iterator[Page]:
    """Run a browser with an empty profile until the block, or this process, ends; no file of it is left behind."""
    flags = _FLAGS if takes_pictures else (*_FLAGS, _WITHOUT_PICTURES)
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="browser-") as folder, ours:
        # It reads from descriptor 3 and writes to 4.
        command = ["sh", "-c", 'exec "$0" "$@" 3<&0 4>&0 </dev/null', chromium, *flags, f"--user-data-dir={folder}"]
        with theirs:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=os.environ | {"TMPDIR": folder},
            )  # fmt: skip
        try:
            yield Page(_Connection(ours))
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)  # its other processes, which write to the folder, have its output
