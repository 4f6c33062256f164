"""A Ray cluster on this machine, in namespaces of its own: scripts that start its nodes, and what runs them."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support import install
from tests.support.identity import DROP

RAY = "ray==2.58.0"

QUICK = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "9"}
"""Where nodes are killed: the cluster knows after nine seconds, not after a quarter of a minute. On a busy machine it
may then take a living one for dead, after five it did.
"""

_COMMAND = """
import sys
for name in ("ray.serve", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli"):
    sys.modules[name] = None
from ray.scripts.scripts import main
main()
"""
"""`ray`, without the sub-commands that cost more than all of its others."""

_NAMESPACES = """
set -e
ip link set lo up
cd /
exec 9<"$SUITE"
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p "$SUITE"
mount --no-canonicalize --bind /proc/self/fd/9 "$SUITE"
exec 9<&-
mount -t tmpfs -o mode=1777 shm /dev/shm
exec "$@"
"""

_HEAD = """
set -e
ray() { "$PYTHON" -c "$COMMAND" "$@" >>"$HOME/ray.log" 2>&1; }
mkdir -p -m 700 ~/.ray
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' >~/.ray/auth_token
chmod 600 ~/.ray/auth_token
ray start --head --port=6390 --num-cpus=1 --include-dashboard=false --disable-usage-stats --node-ip-address=127.0.0.1 \\
    --no-monitor --include-log-monitor=false
main='import sys; from launcher.__main__ import main; sys.exit(main(["paddock", *sys.argv[1:]]))'
paddock() { "$PYTHON" -c "$main" "$@"; }
cd "$MAIN"
"""
ALONE = _HEAD
"""One node, which any user can start."""

CLUSTER = (
    _HEAD
    + """
node() {
    mkdir -p -m 700 ~/$1/.ray
    cp ~/.ray/auth_token ~/$1/.ray
    HOME=~/$1 unshare -u sh -c '
        hostname '$1'
        readlink /proc/self/ns/uts >~/uts
        exec "$PYTHON" -c "$COMMAND" start --address=127.0.0.1:6390 --num-cpus=1 --disable-usage-stats \\
            --include-log-monitor=false
    ' >>~/ray.log 2>&1
}
node second
"""
)
"""Two, with names, homes and processes of their own: for root alone. `node NAME` starts another one."""

TRY = r"""
import os, socket
def tries(what, act):
    try:
        act()
        print("reached", what)
    except OSError:
        pass
tries("/tmp/ray", lambda: os.listdir("/tmp/ray"))
tries("the token", lambda: open(os.environ["TOKEN"]).read())
for directory, _, names in os.walk("/dev/shm"):
    for name in names:
        tries(name, lambda: open(os.path.join(directory, name), "rb").read())
for port in (6390, 8265, 10001):
    tries(port, lambda: socket.create_connection(("127.0.0.1", port), 2))
for words in (line.split() for line in list(open("/proc/net/unix"))[1:]):
    if len(words) > 7:
        kind = {"0001": socket.SOCK_STREAM, "0002": socket.SOCK_DGRAM}.get(words[4], socket.SOCK_SEQPACKET)
        tries(words[7], lambda: socket.socket(socket.AF_UNIX, kind).connect(words[7].replace("@", chr(0), 1)))
print([name for name in os.environ if name.startswith("RAY")])
"""
"""What a hostile command tries; it prints what it has reached, and the names of Ray's variables."""


def run(
    home: Path,
    main: Path,
    script: str,
    patience: float = 500,
    *,
    user: bool = False,
    further: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Runs a script in namespaces of its own, in the repository; its processes end with it.

    Args:
        home: whose.
        main: the repository.
        script: behind `ALONE` or `CLUSTER`.
        patience: seconds for it.
        user: as an ordinary user.
        further: variables.
    """
    environment = {
        "HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": str(install.install().python),
        "COMMAND": _COMMAND,
        "MAIN": str(main), "SUITE": str(install.public_root()), "RAY_AUTH_MODE": "token",
        "PYTHONPATH": str(install.libraries(RAY)), "RAY_USAGE_STATS_ENABLED": "0", "LC_ALL": "C.UTF-8",
        "RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0", **(further or {}),
    }  # fmt: skip
    words = ["unshare", "-n", "-m", "-u", "-p", "-f", "--kill-child", "--mount-proc", "bash", "-c", _NAMESPACES, "bash"]
    words += [*(DROP if user else ()), "bash", "-c", script]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=patience, check=False, cwd=home
    )
    logs = [path.read_text()[-2000:] for path in (home / "ray.log", home / "serve.log") if path.exists()]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    return done
