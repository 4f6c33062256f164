"""`paddock batch --engine ray` on a real cluster of two nodes: what comes home, what jails reach, what is left."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.engines import ray
from policy.errors import Refusal
from tests.support import identity, install, repository
from tests.support.features import need
from tests.support.install import Installed

RAY = "ray==2.58.0"

CLUSTER = """
set -e
ip link set lo up
cd /
exec 9<"$SUITE"
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p "$SUITE"
mount --no-canonicalize --bind /proc/self/fd/9 "$SUITE"
exec 9<&-
mount -t tmpfs -o mode=1777 shm /dev/shm
ray() { "$PYTHON" -m ray.scripts.scripts "$@" >>"$HOME/ray.log" 2>&1; }
mkdir -p -m 700 ~/.ray
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' >~/.ray/auth_token
chmod 600 ~/.ray/auth_token
ray start --head --port=6390 --num-cpus=1 --include-dashboard=false --disable-usage-stats --node-ip-address=127.0.0.1
ray start --address=127.0.0.1:6390 --num-cpus=1 --resources='{"second": 1}' --disable-usage-stats
main='import sys; from launcher.__main__ import main; sys.exit(main(["paddock", *sys.argv[1:]]))'
paddock() { "$PYTHON" -c "$main" "$@"; }
cd "$MAIN"
"""

TRY = r"""
import os, socket
for path in ("/tmp/ray", os.environ["TOKEN"]):
    try:
        os.stat(path)
        print("reached", path)
    except OSError:
        pass
print(*("reached " + name for name in os.listdir("/dev/shm")))
for port in (6390, 8265, 10001):
    try:
        socket.create_connection(("127.0.0.1", port), 2)
        print("reached", port)
    except OSError:
        pass
for name in filter(None, (line.split()[7:] for line in list(open("/proc/net/unix"))[1:])):
    print("reached", name)
print([name for name in os.environ if name.startswith("RAY")])
"""


def rows(*found: dict[str, Any]) -> str:
    """A file of rows."""
    return "".join(json.dumps(row) + "\n" for row in found)


@pytest.mark.timeout(600)
def test_a_cluster_performs_rows_as_this_machine_does(public_dir: Path, installed: Installed) -> None:
    """The same results, submodule and patch; no jail reaches Ray; nothing is left, and what cannot be is refused."""
    need("network")
    home = public_dir
    made = repository.make(identity.root(home), home)
    token = home / ".ray/auth_token"
    attack = {"id": "attack", "command": ["/usr/bin/python3", "-c", TRY], "env": {"TOKEN": str(token)}}
    work = [
        {"id": str(number), "command": f"echo {number} >new; git commit -qam x; cat library/*"} for number in range(4)
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
    environment = {
        "HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": str(installed.python),
        "MAIN": str(made.main), "SUITE": str(install.public_root()), "RAY_AUTH_MODE": "token",
        "PYTHONPATH": str(install.libraries(RAY)), "RAY_USAGE_STATS_ENABLED": "0", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    words = ["unshare", "-n", "-m", "-p", "-f", "--kill-child", "--mount-proc", "bash", "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500, check=False, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr + (home / "ray.log").read_text()[-2000:]
    here, there = (
        {found["id"]: found for found in map(json.loads, (home / name).read_text().splitlines())}
        for name in ("local.jsonl", "ray.jsonl")
    )
    assert here.keys() == there.keys() == {"0", "1", "2", "3", "attack"}
    for name, found in here.items():
        assert found["cause"] == "exited", found
        for key in ("status", "patch", "commit", "key", "cause"):
            assert found[key] == there[name][key], (name, key)
    assert there["1"]["patch"].endswith("+1\n")
    assert there["attack"]["stdout"].split("\n")[1:] == ["[]", ""], there["attack"]["stdout"]
    assert "5 rows have their results already" in done.stderr
    for name, reference in (("wide", "row-too-wide"), ("open", "rows-invalid"), ("none", "ray-without-token")):
        assert f"[{reference}]" in (home / f"{name}.said").read_text()
    assert len((home / "mirrors").read_text().split()) == 1, "worktrees are left beside the mirror"
    assert "batch-" not in (home / "worktrees").read_text()


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
