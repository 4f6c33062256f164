"""A machine with an Internet of its own (`internet.py`), for tests that need public addresses and names."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from tests.support import internet
from tests.support.identity import Who, Word

CERTIFIED = ("good.example", "*.good.example", "other.example", "second.example", "six.example", "both.example")
_PROGRAM = Path(internet.__file__)


@dataclass(frozen=True)
class World:
    """A running world.

    Attributes:
        directory: holds `www`, which the servers serve, `ca.pem`, which certified them, and `seen.jsonl`.
        prefix: words in front of a command that is to run on the machine; it needs the suite's own rights.
    """

    directory: Path
    prefix: tuple[str, ...]

    def run(
        self,
        who: Who,
        argv: Sequence[Word],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `argv` on the machine, as `who`, to its end."""
        return subprocess.run(
            [*self.prefix, "env", f"--chdir={cwd}", *who.command(argv)],
            cwd=cwd,
            env=who.environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(
        self, who: Who, argv: Sequence[Word], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Starts `argv` on the machine, as `who`, with pipes; the caller ends it."""
        return subprocess.Popen(
            [*self.prefix, "env", f"--chdir={cwd}", *who.command(argv)],
            cwd=cwd,
            env=who.environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def seen(self, since: int = 0) -> list[dict[str, Any]]:
        """What has arrived anywhere, without the first `since` entries."""
        file = self.directory / "seen.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()][since:]


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Makes a world in `directory`, which every user can enter."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    ca.issue_cert(*CERTIFIED).private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    (directory / "www").mkdir()
    (directory / "seen.jsonl").touch()
    root = os.geteuid() == 0
    user = () if root else ("--user", "--map-current-user", "--keep-caps")
    process = subprocess.Popen(
        ["unshare", *user, "--net", "--mount", "--", sys.executable, _PROGRAM, "machine", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n", "the world was not made"
        namespaces = ("--net", "--mount") if root else ("--user", "--preserve-credentials", "--net", "--mount")
        yield World(directory, ("nsenter", f"--target={process.pid}", *namespaces, "--"))
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()
