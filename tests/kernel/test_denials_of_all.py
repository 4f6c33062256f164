"""Denials that need no right to be heard: what the guard and the proxy refuse, in the ledger of anybody's session."""

import json
import os
from pathlib import Path

import pytest

from tests.support import guarded
from tests.support.features import need
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed


def test_the_guard_of_a_further_command_tells_as_well(user: Who, installed: Installed, public_dir: Path) -> None:
    """What `paddock exec` runs, and what it leaves in the background, stands in the session's ledger."""
    need("landlock")
    jail = guarded.at(user, installed, public_dir)
    for name in ("first", "further", "left"):
        (jail.outside / name).write_text("content")
    waiting = jail.start(["sh", "-c", "echo ready; read line; chmod 600 $1", "sh", jail.outside / "first"],
                         "--session", "more")  # fmt: skip
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b"ready\n"
    os.mkfifo(jail.inside / "go")
    user.give(jail.inside / "go")
    line = 'chmod 600 "$1"; (read word <go; chmod 600 "$2"; echo >go) >/dev/null 2>&1 &'
    words: list[str | Path] = ["exec", "more", "--", "sh", "-c", line, "sh"]
    ended = user.run([installed.paddock, *words, jail.outside / "further", jail.outside / "left"], cwd=jail.inside)
    assert (ended.returncode, "Operation not permitted" in ended.stderr) == (0, True), ended
    ended = user.run(["timeout", "60", "sh", "-c", "echo >go; cat go"], cwd=jail.inside)
    assert ended.returncode == 0
    waiting.communicate(b"\n", timeout=60)
    lines = guarded.denials(jail, "more")
    assert sorted(line["path"] for line in lines) == [str(jail.outside / n) for n in ("first", "further", "left")]
    assert all(line["layer"] == "guard" and line["process"]["comm"] == "chmod" for line in lines)


ASKS = """
import sys, urllib.error, urllib.request
for line in sys.stdin:
    try:
        urllib.request.urlopen(line.strip(), timeout=60)
    except urllib.error.HTTPError as error:
        print(error.code, flush=True)
"""


@AS_A_USER
@pytest.mark.parametrize("backend", ["", "PADDOCK_NO_USERNS", "PADDOCK_NO_LANDLOCK"])
def test_the_proxys_refusals_are_in_the_ledger(who: Who, installed: Installed, public_dir: Path, backend: str) -> None:
    """As they come, and after the session; with who asked, and the rule that would allow them."""
    need("landlock")
    need("bubblewrap" if backend == "PADDOCK_NO_LANDLOCK" else "userns")
    jail = guarded.at(who, installed, public_dir)
    options = ("--session", "net", "--net", "proxy", "--proxy-env", "yes", "--allow-domain", "example.com")
    command: list[str | Path] = [installed.paddock, "run", *options, "--", "/usr/bin/python3", "-I", "-c", ASKS]
    session = who.start(command, cwd=jail.inside, env={backend: "1"} if backend else {})
    assert session.stdin is not None
    assert session.stdout is not None
    session.stdin.write(b"http://one.example.invalid/\n")
    session.stdin.flush()
    assert session.stdout.readline() == b"403\n"
    watching = who.start([installed.paddock, "denials", "net", "--follow", "--json"])
    assert watching.stdout is not None
    first = json.loads(watching.stdout.readline())
    assert (first["host"], first["process"]["comm"]) == ("one.example.invalid", "python3")
    assert Path(f"/proc/{first['process']['pid']}/comm").read_text() == "python3\n"
    session.stdin.write(b"http://two.example.invalid:8080/\n")
    session.stdin.flush()
    assert json.loads(watching.stdout.readline())["port"] == 8080
    session.communicate(timeout=60)
    assert watching.communicate(timeout=60)[0] == b""
    lines = guarded.denials(jail, "net")
    assert lines[0]["process"] == first["process"]
    assert first["process"]["exe"].startswith("/usr/bin/python3")
    assert [(line["layer"], line["host"], line["port"]) for line in lines] == [
        ("proxy", "one.example.invalid", 80),
        ("proxy", "two.example.invalid", 8080),
    ]
    assert lines[0]["allow"]["flag"] == "--allow-domain one.example.invalid:80"
    assert lines[0]["risk"]
