"""A model server on loopback that does what a script says, in the words of whichever API it is asked in.

It speaks Anthropic Messages, OpenAI Responses, OpenAI Chat Completions and Gemini, streaming or not. The step that is
next follows from the number of tool results in the request alone, so a request that is sent twice is answered alike.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import zstandard

from tests.support.models import anthropic, chat, gemini, responses
from tests.support.models.script import Call, Json, Step, Tool, call_for, main_request

FAREWELL = "The script has ended."


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        path: with its query.
        headers: names in lower case.
        body: parsed; empty for a GET.
        tools: what it advertised.
        results: what the agent's tools had answered until then.
    """

    path: str
    headers: dict[str, str]
    body: Json
    tools: tuple[Tool, ...] = ()
    results: tuple[str, ...] = ()


@dataclass
class ModelServer:
    """A running server.

    Attributes:
        port: on 127.0.0.1.
        script: what the model does, step by step; may be replaced between two conversations.
        scripts: others, for conversations in which a word occurs; the first that fits is taken.
        requests: all so far, in order of arrival.
        unknown: method and path of those that no API here knows; they were answered with 404.
        connections: how many there were, with requests or without.
    """

    port: int
    script: Sequence[Step] = ()
    scripts: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    connections: int = 0
    account: Callable[[str, str, dict[str, str], Json], Json | int | None] | None = None
    """Asked first: method, path without query, headers and body -> what a login's own API answers; a number: with that
    status, and nothing else."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def results(self) -> tuple[str, ...]:
        """What the agent's tools answered, one for each step that was made."""
        return max((request.results for request in self.requests), key=len, default=())

    @property
    def ended(self) -> bool:
        """Whether the agent came to the end of the script."""
        return len(self.results) >= len(self.script)

    def forget(self) -> None:
        """Starts over with the records."""
        self.requests.clear()
        self.unknown.clear()

    def respond(self, path: str, headers: dict[str, str], body: Json) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer to a POST."""
        plain = path.partition("?")[0]
        if plain.endswith("/count_tokens"):
            return 200, "application/json", b'{"input_tokens": 1}'
        if plain.endswith(":countTokens"):
            return 200, "application/json", b'{"totalTokens": 1}'
        api: Any = next((module for end, module in _APIS.items() if plain.endswith(end)), None)
        if api is None:
            self.unknown.append(f"POST {plain}")
            return 404, "application/json", b'{"error": {"message": "no such method"}}'
        tools, results = tuple(api.tools(body)), tuple(api.results(body))
        self.requests.append(Request(path, headers, body, tools, results))
        said = json.dumps(body)
        script = next((script for word, script in self.scripts.items() if word in said), self.script)
        turn = _turn(script, tools, results)
        if api is gemini:
            return 200, *gemini.answer(body, turn, stream=":stream" in plain)
        return 200, *api.answer(body, turn)


def _turn(script: Sequence[Step], tools: Sequence[Tool], results: Sequence[str]) -> Call | str:
    if main_request(tools) and len(results) < len(script):
        return call_for(script[len(results)], tools)
    return FAREWELL


_APIS = {
    "/messages": anthropic,
    "/responses": responses,
    "/chat/completions": chat,
    ":generateContent": gemini,
    ":streamGenerateContent": gemini,
}


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    timeout = 60

    def do_POST(self) -> None:
        """Answers with the next step of the script."""
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("content-encoding") == "zstd":
            text = zstandard.ZstdDecompressor().decompressobj().decompress(text)
        body = json.loads(text or b"{}")
        if not self._of_account("POST", headers, body):
            self._send(*self.server.model.respond(self.path, headers, body))

    def do_GET(self) -> None:
        """Has no models to list, agents work with the one that they are told; and speaks HTTP only."""
        if self._of_account("GET", {name.lower(): value for name, value in self.headers.items()}, {}):
            return
        if self.headers.get("Upgrade"):
            self._send(426, "application/json", b'{"error": {"message": "by HTTP, please"}}')
            return
        self.server.model.unknown.append(f"GET {self.path}")
        self._send(404, "application/json", b'{"error": {"message": "no such thing"}}')

    def _of_account(self, method: str, headers: dict[str, str], body: Json) -> bool:
        """Whether a login's own API has answered."""
        asked = self.server.model.account
        found = asked(method, self.path.partition("?")[0], headers, body) if asked is not None else None
        if found is not None:
            status, answer = (found, {}) if isinstance(found, int) else (200, found)
            self._send(status, "application/json", json.dumps(answer).encode())
        return found is not None

    def do_HEAD(self) -> None:
        """Is alive."""
        self._send(200, "text/plain", b"")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing: what matters is recorded."""


class _Server(ThreadingHTTPServer):
    model: ModelServer
    daemon_threads = True

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as socketserver has it
        """Counts, in the one thread that accepts."""
        self.model.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, _request: object, _address: object) -> None:
        """An agent that is ended in the middle of an answer is no fault of the server's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(_request, _address)  # type: ignore[arg-type]


@contextmanager
def serving(script: Sequence[Step] = ()) -> Iterator[ModelServer]:
    """A server for as long as the context lasts."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.model = ModelServer(server.socket.getsockname()[1], script)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.model
        finally:
            server.shutdown()
            thread.join()
