"""What every unit test has around it."""

import os
import sqlite3
import sys
from collections.abc import Iterator

import pytest

from launcher.vcs import jailed_git

_helper = jailed_git._Helper()


def _forget_the_helper() -> None:
    """Its jails are children of the process that has started it, and have that one's limits."""
    jailed_git._of_thread.helper = None


os.register_at_fork(after_in_child=_forget_the_helper)


def pytest_sessionfinish() -> None:
    """Ends it."""
    _helper.close()


@pytest.fixture(autouse=True)
def _jails_share_a_helper(request: pytest.FixtureRequest) -> Iterator[None]:
    """Git of all these tests runs in jails of one helper, but for those of helpers themselves: starting it takes twice
    as long as what most have git do."""
    jailed_git._of_thread.helper = None if request.module.__name__.endswith("test_git_runner") else _helper
    yield
    jailed_git._of_thread.helper = None


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
