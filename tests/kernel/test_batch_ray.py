"""`paddock batch --engine ray` on a real cluster of two nodes: what comes home, what jails reach, what is left."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.engines import ray
from policy.errors import Refusal
from tests.support import identity, repository
from tests.support.cluster import CLUSTER, QUICK, TRY, run
from tests.support.features import need

SAME = ("status", "patch", "commit", "key", "cause")
"""What results have in common, whoever performs a row."""


def rows(*found: dict[str, Any]) -> str:
    """A file of rows."""
    return "".join(json.dumps(row) + "\n" for row in found)


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The last result of each row by its id."""
    return {found["id"]: found for found in map(json.loads, path.read_text().splitlines())}


@pytest.mark.timeout(600)
def test_a_cluster_performs_rows_as_this_machine_does(public_dir: Path) -> None:
    """The same results, submodule and patch; no jail reaches Ray; nothing is left, and what cannot be is refused."""
    need("network")
    home = public_dir
    made = repository.make(identity.root(home), home)
    token = home / ".ray/auth_token"
    attack = {"id": "attack", "command": ["/usr/bin/python3", "-c", TRY], "env": {"TOKEN": str(token)}}
    work = [
        {"id": str(number), "command": f"echo {number} >new; git commit -qam x; cat library/*"} for number in range(2)
    ]
    (home / "rows.jsonl").write_text(rows(*work, attack))
    (home / "wide.jsonl").write_text(rows({"command": "true", "cpus": 64}))
    (home / "open.jsonl").write_text(rows({"command": "true", "policy": ["--net", "open"]}))
    script = f"""{CLUSTER}
    paddock batch ~/rows.jsonl --quiet --engine local --results ~/local.jsonl
    paddock batch ~/rows.jsonl --quiet --engine ray --address 127.0.0.1:6390 --results ~/ray.jsonl
    paddock batch ~/rows.jsonl --quiet --engine ray --address 127.0.0.1:6390 --results ~/ray.jsonl
    ! paddock batch ~/wide.jsonl --quiet --engine ray --address 127.0.0.1:6390 2>~/wide.said
    ! paddock batch ~/open.jsonl --quiet --engine ray --address 127.0.0.1:6390 2>~/open.said
    ! RAY_AUTH_MODE=disabled paddock batch ~/rows.jsonl --engine ray --results ~/none.jsonl 2>~/none.said
    find ~/.local/share/paddock/mirrors -mindepth 2 -maxdepth 2 >~/mirrors
    git worktree list >~/worktrees
    """
    done = run(home, made.main, script)
    here, there = results(home / "local.jsonl"), results(home / "ray.jsonl")
    assert here.keys() == there.keys() == {"0", "1", "attack"}
    for name, found in here.items():
        assert found["cause"] == "exited", found
        for key in SAME:
            assert found[key] == there[name][key], (name, key)
    assert there["1"]["patch"].endswith("+1\n")
    assert there["attack"]["stdout"] == "[]\n"
    assert "3 rows have their results already" in done.stderr
    for name, reference in (("wide", "row-too-wide"), ("open", "rows-invalid"), ("none", "ray-without-token")):
        assert f"[{reference}]" in (home / f"{name}.said").read_text()
    assert len((home / "mirrors").read_text().split()) == 1, "worktrees are left beside the mirror"
    assert "batch-" not in (home / "worktrees").read_text()


KILLS = r"""
of_node() {  # its processes: those with its host name
    for process in /proc/[0-9]*; do
        test "$(readlink $process/ns/uts)" != "$(cat ~/$1/uts)" || echo ${process#/proc/}
    done
}
await() { for i in $(seq 900); do if "$@"; then return; fi; sleep 0.1; done; echo "in vain: $*" >&2; exit 9; }
run_at_least() { test $(pgrep -fcx 'sleep 1.77') -ge $1; }
ended_at_least() { test -e $2 && test $(wc -l <$2) -ge $1; }
batch() { exec "$PYTHON" -c "$main" batch ~/rows.jsonl --json --engine ray --address 127.0.0.1:6390 --results "$@"; }
left() {
    find ~/.local/share/paddock/mirrors ~/second/.local/share/paddock/mirrors -mindepth 2 -maxdepth 2 -not -name main
    find ~/.local/state/paddock ~/second/.local/state/paddock -mindepth 2 -not -path '*/locks/repository-*'
    find /tmp -mindepth 1 -maxdepth 1 -not -name ray -not -name "${SUITE#/tmp/}"
    pgrep -af '^[^ ]*python3 .*(/launcher/|launcher.__main__)|^sleep' || true
}

paddock batch ~/rows.jsonl --quiet --engine local --results ~/local.jsonl

batch ~/killed.jsonl >~/killed.out 2>~/killed.said & driver=$!
await run_at_least 2
kill -9 $(for each in $(of_node second); do grep -lz '^ray\|/ray' /proc/$each/cmdline | cut -d/ -f3; done)  # no jails
node second
PYTHONPATH=~/strange:$PYTHONPATH node third
wait $driver

kill -9 $(of_node third)
batch ~/driver.jsonl & driver=$!
await ended_at_least 2 ~/driver.jsonl
await run_at_least 2
kill -9 $driver
wait $driver || true
cp ~/driver.jsonl ~/driver.before
cp ~/driver.jsonl.begun ~/driver.begun
(batch ~/driver.jsonl >~/driver.out 2>~/driver.said)
left | sort >~/left
"""


@pytest.mark.timeout(600)
def test_killed_nodes_and_drivers_lose_no_row_and_leave_nothing(public_dir: Path) -> None:
    """What was begun is said and done again; a node that joins late performs rows once it is found fit, or none."""
    need("network")
    home = public_dir
    made = repository.make(identity.root(home), home)
    strange = home / "strange/paddock_launcher-99.dist-info"
    strange.mkdir(parents=True)
    (strange / "METADATA").write_text("Metadata-Version: 2.1\nName: paddock-launcher\nVersion: 99\n")
    command = "sleep 1.77; echo $0 >new; cat library/*"
    work = [{"id": str(number), "command": ["sh", "-c", command, str(number)]} for number in range(12)]
    (home / "rows.jsonl").write_text(rows(*work))
    run(home, made.main, CLUSTER + KILLS, further=QUICK)
    here, killed, after = (results(home / f"{name}.jsonl") for name in ("local", "killed", "driver"))
    for there in (killed, after):
        assert there.keys() == here.keys()
        for name, found in there.items():
            assert [found[key] for key in SAME] == [here[name][key] for key in SAME]
    nodes = {found["node"] for found in killed.values()}
    assert len(nodes) == 2, "what has joined late performed no rows, or what is not fit did"
    assert "second" in nodes
    assert {found["attempt"] for found in killed.values()} == {1, 2}
    said = (home / "killed.said").read_text()
    assert "has joined: the node third has Paddock 99, and this machine " in said
    before = results(home / "driver.before")
    again = {name for name, found in after.items() if found["attempt"] == 2}
    assert len(before) + len(again) == len((home / "driver.begun").read_text().split())
    assert not again & before.keys()
    assert f"{len(again)} rows were begun before and have no result" in (home / "driver.said").read_text()
    assert len((home / "driver.jsonl").read_text().splitlines()) == len(here), "a row was performed twice"
    told = json.loads((home / "driver.out").read_text())
    assert (told["skipped"], told["again"], told["left"]) == (len(before), len(again), [])
    assert (home / "left").read_text() == ""


@pytest.mark.parametrize(
    ("mode", "token", "permissions", "reference"),
    [
        ("", "x", 0o600, "ray-without-token"),
        ("token", None, 0o600, "ray-without-token"),
        ("token", "x", 0o644, "ray-token-open"),
        ("token", "x", 0o600, ""),
    ],
)
def test_a_cluster_without_a_secret_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, token: str | None, permissions: int, reference: str
) -> None:
    """Before Ray is imported."""
    path = tmp_path / "token"
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    if token is not None:
        path.write_text(token)
        path.chmod(permissions)
    if not reference:
        ray.check_token()
        return
    with pytest.raises(Refusal) as refused:
        ray.check_token()
    assert refused.value.reference == reference
    assert "ray" not in sys.modules
