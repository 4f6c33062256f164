"""What every unit test has around it."""

import sqlite3
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _databases_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The service's databases that a test opens end with it: from Python 3.13 on one that is open tells so, later."""
    opened: list[sqlite3.Connection] = []
    module = sys.modules.get("launcher.service.database")
    if module is not None:
        connect = module.connect

        def noted(path: str) -> sqlite3.Connection:
            opened.append(connect(path))
            return opened[-1]

        monkeypatch.setattr(module, "connect", noted)
    yield
    for connection in opened:
        connection.close()
