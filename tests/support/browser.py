"""Chromium, driven over its DevTools protocol: a page is opened, read, clicked and typed into, as a person does.

By a pipe (`--remote-debugging-pipe`), so that no other process can drive it, and nothing needs to be installed.
"""

import fcntl
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import install

PATIENCE = 30.0
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip

_LIGHT = "chromium-headless-shell"
"""Half as dear, where it is installed: the same, without what draws windows."""

_NAMESPACE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-current-user")), "--pid", "--fork",
              "--kill-child", "--mount-proc", "--")  # fmt: skip
"""So that its crash handlers end, too, which leave its process group."""


class Browser:
    """One browser; `tab` opens a page in it.

    Args:
        place: a directory for its profile.
    """

    def __init__(self, place: Path) -> None:
        theirs, self._out = os.pipe()
        self._in, ours = os.pipe()

        def descriptors() -> None:
            pair = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (theirs, ours)]  # out of the way of 3 and 4
            os.dup2(pair[0], 3)
            os.dup2(pair[1], 4)

        self._process = subprocess.Popen(
            [*_NAMESPACE, shutil.which(_LIGHT) or "chromium", f"--user-data-dir={place}", *_ARGUMENTS],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=descriptors, close_fds=False,
            env={**os.environ, "HOME": str(place)},
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        waiting = b""
        while data := os.read(self._in, 1 << 16):
            *messages, waiting = (waiting + data).split(b"\0")
            for each in messages:
                self._take(json.loads(each))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]].put(message)
        elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
            tab.happened(message["method"], message["params"])

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:  # noqa: ANN401  # as the protocol has it
        """One command, and its result."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue()
        content = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(content).encode() + b"\0")
        found = answer.get(timeout=PATIENCE)
        del self._answers[number]
        assert "error" not in found, (method, found)
        return found["result"]

    def tab(self, address: str, *, width: int = 1200, height: int = 800) -> "Tab":
        """A page, once it is loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            made.ask(f"{domain}.enable")
        made.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        made.go(address)
        return made

    def close(self) -> None:
        """Ends it, and all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE)
        os.close(self._in)
        os.close(self._out)


class Tab:
    """One page.

    Attributes:
        dialogs: messages of dialogs that were opened; each is accepted.
        complaints: what the console was told: errors, and what a policy has blocked.
        requests: addresses that it has asked for.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = threading.Event()
        self.dialogs: list[str] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def ask(self, method: str, **parameters: Any) -> Any:  # noqa: ANN401  # as the protocol has it
        """One command to this page."""
        return self._browser.ask(method, self._session, **parameters)

    def happened(self, method: str, parameters: dict[str, Any]) -> None:
        """Takes note of an event."""
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
            threading.Thread(target=self.ask, args=("Page.handleJavaScriptDialog",), kwargs={"accept": True}).start()
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def go(self, address: str) -> None:
        """Opens an address, as if it were typed."""
        self._loaded.clear()
        self.ask("Page.navigate", url=address)
        assert self._loaded.wait(PATIENCE), address

    def run(self, script: str) -> Any:  # noqa: ANN401  # a value of JSON's
        """The value of an expression in the page; of a promise, what it comes to."""
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What a person reads in an element; "" where there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, script: str, patience: float = PATIENCE) -> None:
        """Waits until an expression is true, also over a navigation."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                if self.run(script):
                    return
            except AssertionError:  # the page is just being replaced
                pass
            time.sleep(0.05)
        raise AssertionError(f"{script} is never true; the page says: {self.text()[:3000]}")

    def click(self, selector: str) -> None:
        """Clicks on the middle of an element."""
        quoted = json.dumps(selector)
        self.until(f"document.querySelector({quoted}) !== null")
        place = self.run(
            f"(() => {{ const e = document.querySelector({quoted}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        for char in text:
            special = {"\r": ("Enter", "Enter", 13), "\t": ("Tab", "Tab", 9)}.get(char)
            if special:
                key, code, number = special
                words = {"key": key, "code": code, "windowsVirtualKeyCode": number}
                if char == "\r":
                    words["text"] = char
                self.ask("Input.dispatchKeyEvent", type="keyDown", **words)
                self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=code, windowsVirtualKeyCode=number)
            else:
                self.ask("Input.dispatchKeyEvent", type="keyDown", key=char, text=char)
                self.ask("Input.dispatchKeyEvent", type="keyUp", key=char)

    def screenshot(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        import base64

        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browsing(place: Path) -> Iterator[Browser]:
    """A browser, ended afterwards."""
    place.mkdir(exist_ok=True)
    made = Browser(place)
    try:
        yield made
    finally:
        made.close()


_AXE = "axe-core@4.10.3"


def axe() -> Path:
    """The file of axe-core, which finds what a page makes hard for people; fetched once."""
    place = install.public_root(install.STABLE) / _AXE.replace("@", "-")
    found = place / "node_modules/axe-core/axe.min.js"
    if not found.exists():
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"--prefix={place}", _AXE],
            check=True, capture_output=True, timeout=120, env=install.CALLER,
        )  # fmt: skip
    return found
