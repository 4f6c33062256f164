"""The page of a service that does not serve: its application, its gate, and a browser that has been let in."""

import asyncio
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from launcher import cli
from launcher.ledger import ledgers
from launcher.service import daemon, instance, settings
from launcher.service.database import Database
from launcher.service.packets import Peer
from launcher.service.page.admission import HEADER, Admissions, Gate
from launcher.service.page.listener import build
from launcher.service.page.rendering import refusal_page
from launcher.service.schema import SessionRequest, SessionState
from launcher.session.places import Places, places

PORT = 7878


class Paged:
    """A service's parts, put together and not running, and its page.

    Args:
        where: directories of its user.
    """

    def __init__(self, where: Places) -> None:
        own = instance.Directories(where)
        own.make()
        self.places = where
        self.database = Database(own.database)
        self.service = daemon.Service(
            where,
            own,
            settings.Settings.model_validate({}),
            self.database,
            1_024,
            lambda words: cli.parse(words, verb="run"),
        )
        self.app: FastAPI = build(self.service.context)
        self.admissions = Admissions(PORT)
        self.gate = Gate(self.app, self.admissions, refusal_page)
        self.cookie, self.csrf = "", ""

    async def ask(
        self, method: str, path: str, *, host: str | None = None, headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None, body: bytes | None = None,
    ) -> httpx.Response:  # fmt: skip
        """One request, with what a browser that was let in sends, unless `headers` say otherwise ("": nothing)."""
        host = host or self.admissions.host
        sent = {"host": host, "cookie": f"paddock-page={self.cookie}" if self.cookie else ""}
        if method not in ("GET", "HEAD"):
            sent |= {"origin": f"http://{host}", "sec-fetch-site": "same-origin", HEADER.decode(): self.csrf}
        sent |= headers or {}
        transport = httpx.ASGITransport(app=self._with_state, raise_app_exceptions=True)
        given = {name: value for name, value in sent.items() if value}
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path, headers=given, data=form, content=body)

    async def _with_state(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # as ASGI has them
        scope["state"] = {"peer": Peer(0, os.geteuid(), 0), "abort": lambda: None}
        await self.gate(scope, receive, send)

    def get(self, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401  # those of `ask`
        """GET."""
        return asyncio.run(self.ask("GET", path, **more))

    def post(self, path: str, form: Mapping[str, str] | None = None, **more: Any) -> httpx.Response:  # noqa: ANN401  # too
        """POST of a form."""
        return asyncio.run(self.ask("POST", path, form=form or {}, **more))

    def enter(self, *, plain: bool = False) -> httpx.Response:
        """Lets the browser in."""
        address = self.admissions.invite(plain=plain)
        host, _, path = address.removeprefix("http://").partition("/")
        answer = self.get(f"/{path}", host=host)
        self.cookie = answer.cookies["paddock-page"]
        found = re.search(r'name="csrf" content="([^"]+)"', self.get("/", host=host).text)
        assert found is not None
        self.csrf = found[1]
        return answer

    def session(self, name: str, *command: str, state: SessionState = SessionState.RUNNING, **fields: Any) -> None:  # noqa: ANN401
        """A session on record, in a state; no process has anything to do with it."""
        request = SessionRequest.model_validate(
            {"name": name, "command": list(command) or ["true"], "directory": "/srv/project", **fields}
        )
        store = self.service.store
        store.create(request, os.geteuid(), None, "")
        for after in (SessionState.STARTING, SessionState.RUNNING, state):
            if after is not SessionState(store.required(name)["state"]):
                store.move(name, after, "as the test says", checked=False)

    def denials(self, name: str, *contents: Mapping[str, Any]) -> None:
        """A ledger of a session's, with these lines."""
        path = ledgers.path_for(self.places.state, name, time.time_ns())
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = ledgers.create(path)
        for content in contents:
            ledgers._put(descriptor, {"kind": "denial", **content})
        os.close(descriptor)


@contextmanager
def paged(place: Path) -> Iterator[Paged]:
    """A page below a directory; the browser has been let in."""
    home = place / "home"
    for path in (home, place / "run"):
        path.mkdir(mode=0o700)
    made = Paged(places({"HOME": str(home), "XDG_RUNTIME_DIR": str(place / "run")}))
    try:
        made.enter()
        yield made
    finally:
        asyncio.run(made.service.jobs.close())
        made.database.close()
