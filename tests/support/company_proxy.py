"""A company's proxy that lets nobody out and remembers who wanted where: what leaves a jail would come by here."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class CompanyProxy:
    """A running proxy.

    Attributes:
        port: on 127.0.0.1.
        asked: first lines of the requests.
    """

    port: int
    asked: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What the launcher is told, so that its own proxy goes through this one."""
        return dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"), f"http://127.0.0.1:{self.port}")


class _Handler(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self) -> None:
        line = self.rfile.readline(4096).decode("latin-1").strip()
        self.server.proxy.asked.append(line)  # type: ignore[attr-defined]  # ours, below
        self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    proxy: CompanyProxy


@contextmanager
def company_proxy() -> Iterator[CompanyProxy]:
    """A proxy for as long as the context lasts."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.proxy = CompanyProxy(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.proxy
        finally:
            server.shutdown()
            thread.join()
