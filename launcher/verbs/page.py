"""`paddock page`: the service's page in a browser."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from launcher.service import units
from launcher.service.client import Client
from launcher.session import messages, places
from policy.errors import Refusal
from policy.plan import SYSTEM_PATH

_START_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_OPENERS = ("xdg-open", "gio open", "wslview")


def page(*, no_open: bool, port: int | None, plain: bool, as_json: bool) -> int:
    """Exit status 0."""
    where = places.places(os.environ)
    opens = not no_open and not as_json and _has_display()
    found = _asked(where, {"port": port or 0, "plain": plain, "file": opens})
    messages.show(json.dumps(found) if as_json else found["address"])
    if opens:
        _open(found["file"])
    return 0


def _asked(where: places.Places, body: dict[str, Any]) -> dict[str, Any]:
    """The service's answer; it is started where none is."""
    client = Client(where)
    try:
        answer: dict[str, Any] = client.call("POST", "/v1/page", body)
    except Refusal as refusal:
        if refusal.reference != "service-absent":
            raise
        _start(client, where)
        answer = client.call("POST", "/v1/page", body)
    return answer


def _start(client: Client, where: places.Places) -> None:
    """Starts a service that outlives this process, and waits until it answers.

    Raises:
        Refusal: it ended, or does not answer.
    """
    path = f"{places.made(where.state)}/serve.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as log:
        process = subprocess.Popen(
            [str(units.command()), "serve"], cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            client.call("GET", "/v1/health")
        except Refusal as refusal:
            if refusal.reference != "service-absent":
                raise
        else:
            messages.say(f"paddock: started the service, process {process.pid}; it says what it does in {path}")
            return
        if process.poll() is not None:
            break
        time.sleep(_LOOK_SECONDS)
    said = Path(path).read_bytes()[-2_000:].decode(errors="replace").strip()
    raise Refusal("service-absent", "the service could not be started", context=said, hint="paddock serve")


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("WSL_DISTRO_NAME"))


def _open(file: str) -> None:
    """Opens a browser with a file that leads to the address: what is in a command line, others can read.

    A jail of the guard's, which has no PID namespace, is such another, and the user's own, so it would be let in.
    """
    for words in _OPENERS:
        program, *more = words.split()
        path = shutil.which(program, path=SYSTEM_PATH)
        if path:
            subprocess.Popen([path, *more, file], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
            return
    messages.say(f"paddock: no browser was opened: none of {', '.join(_OPENERS)} is here")
