"""`paddock batch` and `paddock tickets run` with `--engine ray`, beside the same rows and tickets here.

A node of a cluster costs more than most of what it performs: each cluster is for all that is tried of its kind.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import wire
from launcher.engines import ray, relay
from launcher.service.packets import REMOTE
from policy import promises
from policy.errors import Refusal
from tests.support import identity, install, repository
from tests.support.cluster import ALONE, CLUSTER, QUICK, RAY, TRY, run
from tests.support.features import need, need_backend
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.programs.scene import SWITCHES

TICKETS = int(os.environ.get("PADDOCK_TICKETS", "3"))
"""More than a few take minutes, most of it for jails and worktrees of this machine, which is both nodes."""
_PROXY = ("--net", "proxy", "--allow-domain", "example.org")
COMMIT = "git add -A && git commit -qm"

SAME = ("status", "patch", "commit", "key", "cause")
"""What results of a row have in common, whoever performs it."""

HELPERS = r"""
await() { for i in $(seq 300); do if "$@"; then return; fi; sleep 0.3; done; echo "in vain: $*" >&2; exit 9; }
run_at_least() { test $(pgrep -fcx 'sleep [57].77') -ge $1; }
of_node() {  # its processes: those with its host name
    for process in /proc/[0-9]*; do
        test "$(readlink $process/ns/uts)" != "$(cat ~/$1/uts)" || echo ${process#/proc/}
    done
}
kill_node() { kill -9 $(for each in $(of_node $1); do grep -lz '^ray\|/ray' /proc/$each/cmdline | cut -d/ -f3; done); }
"""  # which kills no jail

TOOLS = r"""
again_begun() { ls ~/.local/state/paddock/service/logs | grep -q "^$1\\.[0-9]*\\.2$"; }
says() { grep -qs "$2" ~/.local/state/paddock/service/logs/$1/*; }
tickets() { "$PYTHON" -I -c "$main" tickets "$@"; }
ray_run() { tickets run "$@" --engine ray --address 127.0.0.1:6390; }
tickets_ended() { test $(grep -c "session killed.* is ended" ~/serve.log) -ge $1; }
no_broker() { ! broker; }
broker() { pgrep -f '^[^ ]*python3 -I [^ ]*/launcher/helper.py engine '; }
left() {
    find ~/.local/share/paddock/mirrors ~/second/.local/share/paddock/mirrors -mindepth 2 -maxdepth 2 -not -name main
    find ~/.local/state/paddock/worktrees ~/second/.local/state/paddock/worktrees -mindepth 1 -name 'main-tickets*'
    for each in {,second/}.local/state/paddock/{sessions,rows} .local/state/paddock/run/engines; do
        find ~/$each -mindepth 1
    done
    pgrep -af '^[^ ]*python3 .*(launcher.sandbox|helper.py (engine|launchers))|^sleep' || true
}
nothing_left() { left | sort >~/left; ! test -s ~/left; }  # what a broker begins to end goes by and by
serve() { "$PYTHON" -I -c "$main" serve >>~/serve.log 2>&1 & }
serve
await test -e ~/.local/state/paddock/run/control.sock
"""

KILLED_ROWS = r"""
ended_at_least() { test -e $2 && test $(wc -l <$2) -ge $1; }
batch() { exec "$PYTHON" -c "$main" batch ~/rows.jsonl --json --engine ray --address 127.0.0.1:6390 --results "$@"; }
rows_left() {  # what Ray begins to end goes by and by
    find ~/.local/share/paddock/mirrors ~/second/.local/share/paddock/mirrors -mindepth 2 -maxdepth 2 -not -name main
    find ~/.local/state/paddock ~/second/.local/state/paddock -mindepth 2 -not -path '*/locks/repository-*'
    find /tmp -mindepth 1 -maxdepth 1 -not -name ray -not -name "${SUITE#/tmp/}"
    pgrep -af '^[^ ]*python3 .*(/launcher/|launcher.__main__)|^sleep' || true
}

batch ~/killed.jsonl >~/killed.out 2>~/killed.said & driver=$!
await run_at_least 2
kill_node second
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
no_rows_left() { rows_left | sort >~/rows.left; ! test -s ~/rows.left; }
(await no_rows_left) || true
"""

ROWS = """
on_ray() { paddock batch "$@" --quiet --engine ray --address 127.0.0.1:6390; }
paddock batch ~/rows.jsonl --quiet --engine local --results ~/local.jsonl
on_ray ~/rows.jsonl --results ~/ray.jsonl
on_ray ~/rows.jsonl --results ~/ray.jsonl 2>~/twice.said
! on_ray ~/wide.jsonl 2>~/wide.said
! on_ray ~/open.jsonl 2>~/open-row.said
! RAY_AUTH_MODE=disabled on_ray ~/rows.jsonl --results ~/none.jsonl 2>~/none-row.said
find ~/.local/share/paddock/mirrors -mindepth 2 -maxdepth 2 >~/mirrors
git worktree list >~/worktrees
"""

_BROKEN = (
    f"echo n >br; {COMMIT} broken; echo r >br; git stash -q; echo s >br; git stash -q; "
    "git symbolic-ref refs/heads/sy HEAD; "
    "echo 0000000000000000000000000000000000000001 >$(git rev-parse --git-dir)/refs/heads/missing; "
    "git config filter.z.clean false; git config filter.z.required true; echo 'q filter=z' >.gitattributes; echo q >q"
)
"""Commits, stashes, and leaves a ref to nothing, and a file that no `git add` can take."""
_HEAP = (
    f"echo h >h; {COMMIT} first; git update-index --force-remove library; "
    "git update-index --add --cacheinfo 120000,$(printf / | git hash-object -w --stdin),library; "
    "git commit -qm heap; echo new >new"
)
"""Its commit has a link in the place of a submodule, which cannot be laid out at home."""


def ticket(name: str, script: str, *options: str) -> str:
    """A ticket of a file."""
    return f"[[tickets]]\nticket = {json.dumps(name)}\noptions = {json.dumps(options)}\n" + (
        f"command = {json.dumps(['sh', '-c', script])}\n"
    )


def rows(*found: dict[str, Any]) -> str:
    """A file of rows."""
    return "".join(json.dumps(row) + "\n" for row in found)


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The last result of each row by its id."""
    return {found["id"]: found for found in map(json.loads, path.read_text().splitlines())}


def shared(who: identity.Who) -> Path:
    """A repository with a submodule, and the file of its tickets; returns its root."""
    home = who.home
    made = repository.make(who, home)
    work = (
        f"sleep 5.77; cd library; echo {{0}} >in-library-{{0}}; {COMMIT} library-{{0}}; cd ..; "
        f"echo {{0}} >new-{{0}}; {COMMIT} new-{{0}}; git tag tag-{{0}}; echo {{0}} >left"
    )
    tickets = [ticket(f"t{number}", work.replace("{0}", str(number))) + "cpus = 0.25\n" for number in range(TICKETS)]
    (home / "tickets.toml").write_text(f"parallel = {min(TICKETS, 8)}\n" + "".join(tickets))
    install.add_libraries(install.install(), RAY)
    return made.main


def judge_killed_rows(home: Path, work: list[dict[str, Any]]) -> None:
    """What has come of `KILLED_ROWS`."""
    killed, after = (results(home / f"{name}.jsonl") for name in ("killed", "driver"))
    assert killed.keys() == after.keys() == {row["id"] for row in work}
    for name, found in killed.items():
        assert (found["status"], found["cause"]) == (0, "exited"), found
        assert found["patch"].endswith(f"+{name}\n"), found
        assert [found[key] for key in SAME] == [after[name][key] for key in SAME]
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
    assert len((home / "driver.jsonl").read_text().splitlines()) == len(work), "a row was performed twice"
    told = json.loads((home / "driver.out").read_text())
    assert (told["skipped"], told["again"], told["left"]) == (len(before), len(again), [])
    assert (home / "rows.left").read_text() == "", (home / "driver.said").read_text()


@pytest.mark.timeout(900 + 30 * TICKETS)
def test_killed_nodes_and_drivers_lose_nothing_and_leave_nothing(public_dir: Path) -> None:
    """What was begun is said and done again; a node that joins late performs rows once it is found fit, or none.

    The trunk is the same whoever works on its tickets.
    """
    need("network")
    home = public_dir
    main = shared(identity.root(home))
    strange = home / "strange/paddock_launcher-99.dist-info"
    strange.mkdir(parents=True)
    (strange / "METADATA").write_text("Metadata-Version: 2.1\nName: paddock-launcher\nVersion: 99\n")
    # They last, so that a node which joins late finds some even on a busy machine.
    command = "sleep 7.77; echo $0 >new; cat library/*"
    work = [{"id": str(number), "command": ["sh", "-c", command, str(number)]} for number in range(6)]
    (home / "rows.jsonl").write_text(rows(*work))
    run(
        home,
        main,
        CLUSTER
        + HELPERS
        + KILLED_ROWS
        + TOOLS
        + f"THIRD={TICKETS // 3 if TICKETS > 20 else 0}"
        + """
    start=$(git rev-parse HEAD)
    trees() { git rev-parse HEAD^{tree} HEAD:library^{tree} >~/$1.trees 2>&1 || true
              git ls-tree -r HEAD >~/$1.files; git -C library ls-tree -r HEAD >~/$1.library
              git log --format=%s --no-merges $start..HEAD | sort >~/$1.commits; git tag | sort >~/$1.tags; }
    again() { git reset -q --hard $start; git submodule --quiet update --init; git tag -d $(git tag) >&2
              for each in $(git worktree list | sed -n 's/.* \\[agent.*//;s/ .*//p' | tail -n +2); do
                  paddock worktree remove --force $each >&2 || true; done; }

    tickets run ~/tickets.toml --name here --json >~/here.out
    trees here; again
    ray_run ~/tickets.toml --name killed --json >~/killed.out & job=$!
    await tickets_ended "$THIRD"
    await run_at_least 2
    kill_node second
    node second
    await again_begun killed
    await run_at_least 1
    kill -9 $(broker)
    wait $job || true
    trees killed
    await no_broker
    (await nothing_left) || true
    """,
        800 + 30 * TICKETS,
        further=QUICK,
    )
    judge_killed_rows(home, work)
    results = {name: json.loads((home / f"{name}.out").read_text().splitlines()[-1])
               for name in ("here", "killed")}  # fmt: skip
    for name, found in results.items():
        assert found["state"] == "ended", (name, found["result"])
        assert {step["state"] for step in found["steps"]} == {"merged"}
        for agent in found["result"]["agents"]:
            assert (agent["status"], agent["reason"]) == (0, "exited")
        left = {name: each["files"] for name, each in found["result"]["uncommitted"].items()}
        assert list(left.values()) == [["left"]] * TICKETS, (name, left, found["result"]["agents"])
    assert {step["attempt"] for step in results["here"]["steps"]} == {1}
    assert {step["attempt"] for step in results["killed"]["steps"]} & {2, 3}, "it says who was started again"
    for kind in ("files", "library", "commits", "tags"):
        told = {name: (home / f"{name}.{kind}").read_text() for name in results}
        if kind in ("commits", "tags"):
            assert told["here"] == told["killed"]
            assert len(told["here"].split()) == TICKETS
            continue
        # Object ids of the submodule's merges have times in them.
        lines = {name: [line for line in text.splitlines() if "commit" not in line] for name, text in told.items()}
        assert lines["here"] == lines["killed"]
    assert (home / "left").read_text() == "", (home / "serve.log").read_text()[-4000:]


def judge_rows(home: Path) -> None:
    """What has come of `ROWS`."""
    here, there = results(home / "local.jsonl"), results(home / "ray.jsonl")
    assert here.keys() == there.keys() == {"0", "1", "attack"}
    for name, found in here.items():
        assert found["cause"] == "exited", found
        for key in SAME:
            assert found[key] == there[name][key], (name, key)
    assert there["1"]["patch"].endswith("+1\n")
    assert there["attack"]["stdout"] == "[]\n"
    assert "3 rows have their results already" in (home / "twice.said").read_text()
    for name, reference in (("wide", "row-too-wide"), ("open-row", "rows-invalid"), ("none-row", "ray-without-token")):
        assert f"[{reference}]" in (home / f"{name}.said").read_text()
    assert len((home / "mirrors").read_text().split()) == 1, "worktrees are left beside the mirror"
    assert "batch-" not in (home / "worktrees").read_text()


@pytest.mark.timeout(600)
def test_a_cluster_performs_rows_and_holds_sessions_as_this_machine_does(public_dir: Path) -> None:
    """Results, log, denials and signals pass, a submodule and a patch, too; no jail reaches Ray; nothing is left.

    A hostile answer and what a node cannot do are refused.
    """
    need("network")
    home = public_dir
    main = shared(identity.root(home))
    token = home / ".ray/auth_token"
    attack = {"id": "attack", "command": ["/usr/bin/python3", "-c", TRY], "env": {"TOKEN": str(token)}}
    work = [
        {"id": str(number), "command": f"echo {number} >new; git commit -qam x; cat library/*"} for number in range(2)
    ]
    (home / "rows.jsonl").write_text(rows(*work, attack))
    (home / "wide.jsonl").write_text(rows({"command": "true", "cpus": 64}))
    (home / "open.jsonl").write_text(rows({"command": "true", "policy": ["--net", "open"]}))
    patient = (
        f"trap 'echo got it; echo s >stopped; {COMMIT} stopped; exit 7' TERM; echo waits; while :; do sleep 0.2; done"
    )
    odd = (
        "mkdir 'a\tb'; echo x >'a\tb/-n'; git add .; git commit -qm odd; git checkout -q -b elsewhere; echo e >e; "
        f"{COMMIT} elsewhere; git branch -q -- aside; rm file.txt 2>/dev/null; exit 3"
    )
    # It writes more than a log keeps, and goes on: with nothing else it would have a processor for itself.
    endless = f"echo y >y; {COMMIT} endless; yes endless | head -c 40000000; while echo endless; do sleep 0.1; done"
    (home / "several.toml").write_text(
        "parallel = 8\n"
        + ticket("waits", patient) + "cpus = 0.25\n"  # who stays leaves room for the others
        + ticket("denied", "wget -q -T 5 http://denied.example.org/ || echo denied; sleep 15", *_PROXY)
        + "cpus = 0.25\n"
        + ticket("attack", f"echo \"<$MINE>\"; /usr/bin/python3 -c '{TRY}'", "--env", f"TOKEN={token}", "--env", "MINE")
        + ticket("odd", odd)
        + ticket("missing", "true").replace('["sh", "-c", "true"]', '["no-such-command-there"]')
        + ticket("wide", "true") + "cpus = 64\n"
        + ticket("broken", _BROKEN)
        + ticket("heap", _HEAP)
        + ticket("endless", endless) + "cpus = 0.25\ntimeout = 35\n"  # which begins with its wait for a node
    )  # fmt: skip
    (home / "open.toml").write_text(ticket("open", "true", "--net", "open"))
    (home / "tools.toml").write_text("file_tools = true\n" + ticket("tools", "true"))
    run(
        home,
        main,
        CLUSTER
        + HELPERS
        + ROWS
        + TOOLS
        + """
    export MINE='of mine'
    ray_run ~/several.toml --name s --keep --json >~/several.out 2>~/several.said & job=$!
    await says s.1 waits
    await says s.2 denied
    await says s.4 'on node'
    paddock ps --json >~/ps
    told() { paddock denials s.2 --json >~/denials; grep -q denied.example.org ~/denials; }
    await told
    paddock stop s.1
    ! wait $job
    for number in 1 3 7 8; do paddock logs s.$number >~/log.$number 2>&1; done
    ! ray_run ~/open.toml 2>~/open.said
    ! ray_run ~/tools.toml 2>~/tools.said
    (unset RAY_AUTH_MODE; ! ray_run ~/tickets.toml --name none >~/none.said 2>&1)
    for each in broken heap endless; do git log -1 --format=%s agent/$each; done >~/subjects
    git for-each-ref --format='%(refname)' refs/paddock/stash >~/stashes
    find ~/main-heap -name new >~/laid
    git branch --list elsewhere aside sy missing --format='%(refname:short)' >~/branches
    cat ~/main-waits/stopped >~/stopped || true
    await no_broker
    (await nothing_left) || true
    """,
    )
    judge_rows(home)
    found = json.loads((home / "several.out").read_text().splitlines()[-1])
    agents = {agent["ticket"]: agent for agent in found["result"]["agents"]}
    assert (agents["waits"]["reason"], agents["waits"]["status"]) == ("stopped", 7), (home / "log.1").read_text()
    assert agents["waits"]["harvest"]["state"] == "harvested"
    assert "got it" in (home / "log.1").read_text()
    assert (home / "stopped").read_text() == "s\n"
    (live,) = [each for each in json.loads((home / "ps").read_text()) if each["name"] == "s.1"]
    assert live["state"] == "running"
    assert "denied.example.org" in (home / "denials").read_text()
    attacked = (home / "log.3").read_text().splitlines()
    assert not [line for line in attacked if line.startswith("reached")], attacked
    assert "[]" in attacked
    assert "<of mine>" in attacked
    assert agents["odd"]["status"] == 3
    assert (home / "branches").read_text().split() == ["aside", "elsewhere"]
    assert (agents["missing"]["status"], agents["wide"]["refusal"]["errorType"]) == (127, "row-too-wide")
    assert agents["endless"]["reason"] == "timeout"
    assert (home / "subjects").read_text().split() == ["broken", "heap", "endless"], agents
    assert (agents["broken"]["status"], agents["heap"]["status"]) == (0, 0)
    assert "not brought home of the worktree: files that were not committed" in (home / "log.7").read_text()
    stashes = (home / "stashes").read_text().split()
    assert len([line for line in stashes if "broken" in line]) == 2
    assert [line for line in stashes if "heap" in line] or (home / "laid").read_text()
    assert "not all of their files can be laid out" in (home / "log.8").read_text()
    for name, reference in (("open", "usage"), ("tools", "tickets-invalid"), ("none", "ray-without-token")):
        assert f"[{reference}]" in (home / f"{name}.said").read_text()
    assert (home / "left").read_text() == "", (home / "serve.log").read_text()[-4000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "backends", [(promises.NAMESPACES, promises.BUBBLEWRAP), (promises.GUARD,)], ids=["by-options", "guard"]
)
def test_an_ordinary_users_tickets_are_held_by_each_backend(public_dir: Path, backends: tuple[str, ...]) -> None:
    """Work with a submodule comes home, by a run with the longest name; Ray, its token and other homes stay out.

    The guard has a cluster of its own: what chooses it is in the environment of the nodes.
    """
    need("network")
    home = public_dir
    who = identity.user(home)
    main = shared(who)
    token = home / ".ray/auth_token"
    variables: dict[str, str] = {}
    tickets = ""
    for number, backend in enumerate(backends):
        need_backend(backend)
        env, switches = SWITCHES[backend]
        variables |= env
        work = (
            f"/usr/bin/python3 -c '{TRY}'; "
            f"cd library; echo l >l{number}; {COMMIT} library; cd ..; echo n >n{number}; {COMMIT} main{number}; "
            f"echo s >n{number}; git stash -q; echo >left"
        )
        tickets += ticket(f"works{number}", work, *switches, "--env", "TOKEN") + "cpus = 0.25\n"
    (home / "user.toml").write_text(tickets)
    name = "n" * 64
    run(home, main, ALONE + HELPERS + TOOLS + f"""
    mkdir -p ~/second/.local/share/paddock/mirrors ~/second/.local/state/paddock/{{worktrees,sessions,rows}}
    ray_run ~/user.toml --name {name} --keep --json >~/user.out
    for number in $(seq {len(backends)}); do paddock logs {name[:50]}.$number >~/tried$((number - 1)); done
    git log --format=%s --no-merges >~/subjects
    git for-each-ref --format='%(refname)' refs/paddock/stash >~/stashes
    for each in ~/main-works*; do cat $each/left $each/library/l?; done >~/laid
    await no_broker
    (await nothing_left) || true
    """, user=True, further={"TOKEN": str(token), **variables})  # fmt: skip
    found = json.loads((home / "user.out").read_text().splitlines()[-1])
    assert (found["state"], {step["attempt"] for step in found["steps"]}) == ("ended", {1}), found
    assert (home / "laid").read_text() == "\nl\n" * len(backends)
    assert len((home / "stashes").read_text().split()) == len(backends)
    for number in range(len(backends)):
        assert f"main{number}" in (home / "subjects").read_text().split()
        tried = (home / f"tried{number}").read_text().splitlines()
        assert not [line for line in tried if line.startswith("reached")], tried
        assert "[]" in tried
    assert (home / "left").read_text() == "", (home / "serve.log").read_text()[-4000:]


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


@pytest.mark.parametrize(("ending", "status"), [(b"end 7\n", 7), (b"end 75\n", 75), (b"part .\n", -signal.SIGKILL)])
def test_work_that_was_cut_off_is_never_taken_for_the_agents_end(
    user: Who, installed: Installed, public_dir: Path, ending: bytes, status: int
) -> None:
    """The launcher dies as if it had been killed, so the service starts the agent again."""
    program = (
        "import sys; from launcher.engines import relay; from launcher.verbs import run; "
        'sys.exit(relay.launch({"--session": "cut"}, ["agent"], run.launch, lambda *_: None))'
    )
    main, place = shared(user), public_dir / "broker"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0o777)
        listener.listen()
        process = subprocess.Popen(
            user.command([installed.python, "-I", "-c", program]), cwd=main, stderr=subprocess.PIPE, text=True,
            env=user.environment({REMOTE: json.dumps({"socket": str(place), "variables": []})}),
        )  # fmt: skip
        descriptors: list[int] = []
        with listener.accept()[0] as control:
            wire.receive(control.fileno(), descriptors, deadline=time.monotonic() + 60, most=1 << 20)
            output, stream = descriptors
            os.close(output)
            with socket.socket(fileno=stream) as there:
                there.sendall(ending)
            over = {"lost": "", "status": 75 if status == 75 else 7, "denials": 0, "refusal": None}
            wire.send(control.fileno(), wire.frame(relay.OVER, json.dumps(over).encode()))
            said = process.communicate(timeout=60)[1]
    assert process.returncode == status, said
    assert ("was cut off on its way" in said) == (status < 0), said
