"""The supervisor under a systemd that was booted for the test: activation, readiness, watchdog, reload, stop, audit."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from launcher.ledger import audit_socket
from tests.support import booted, features
from tests.support.booted import ACCOUNT, Booted
from tests.support.features import need
from tests.support.install import Installed

SERVICE = f"paddock@{ACCOUNT}.service"
SOCKET = f"paddock@{ACCOUNT}.socket"
ADDRESS = f"/run/paddock/{ACCOUNT}/control.sock"


@pytest.fixture(scope="module")
def machine(installed: Installed) -> Iterator[Booted]:
    """A booted system."""
    need("systemd")
    need("userns")
    with booted.shared(installed) as up:
        yield up


@pytest.fixture
def system(machine: Booted) -> Iterator[Booted]:
    """The same with the service's socket listening, and a repository of its user, who has nothing else."""
    ended = machine.run(machine.installed.paddock, "service", "install", "--system", "--for", ACCOUNT, "--now")
    assert ended.returncode == 0, ended.stderr
    repository(machine)
    yield machine
    machine.clean()


def repository(system: Booted) -> Path:
    """A repository of the user with one commit."""
    root = system.shared / "home/repo"
    script = (
        "git init -q $0; cd $0; git config user.name a; git config user.email a@b; git commit -q --allow-empty -m 1"
    )
    assert system.run("sh", "-ec", script, root, user=True).returncode == 0
    return root


def paddock(system: Booted, *words: str) -> str:
    """What `paddock WORDS` prints for the service's user."""
    ended = system.run(system.installed.paddock, *words, user=True)
    assert ended.returncode == 0, ended.stderr + system.journal()
    return ended.stdout


def create(system: Booted, name: str, script: str, address: str = ADDRESS, **more: object) -> None:
    """Asks the service for a session that runs a shell script, and waits until it runs or is over."""
    body = {"command": ["sh", "-c", script], "directory": str(system.shared / "home/repo"), "name": name, **more}
    ended = system.run(
        *("curl", "--silent", "--show-error", "--fail-with-body", "--unix-socket", address),
        *("--header", "content-type: application/json", "--data-binary", "@-", "http://paddock/v1/sessions"),
        stdin=json.dumps(body), user=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    system.until(f"{name} runs", lambda: session(system, name, address)["state"] in ("running", "ended", "failed"))


def session(system: Booted, name: str, address: str = ADDRESS) -> Any:  # noqa: ANN401  # JSON
    """What the service says of a session; {"state": ""} while it restarts."""
    ended = system.run("curl", "--silent", "--unix-socket", address, f"http://paddock/v1/sessions/{name}", user=True)
    return json.loads(ended.stdout) if ended.returncode == 0 else {"state": ""}


def running(system: Booted) -> set[str]:
    """Names of all processes of the booted system, jails included."""
    return set(system.run("sh", "-c", "cat /proc/[0-9]*/comm").stdout.split())


def test_a_service_from_its_first_client_to_its_end(system: Booted) -> None:
    """The first client starts it; it answers its user and root alone; a reload ends no session; the journal knows its
    records by session; a stop ends sessions in order, and keeps their work and their record.
    """
    _starts_for_its_first_client(system)
    _answers_the_user_and_root_alone(system)
    _reloads(system)
    _logs_by_session(system)
    _stops_in_order(system)


def _starts_for_its_first_client(system: Booted) -> None:
    """Nothing runs before somebody asks; then systemd has READY, one line of status, and the main process."""
    assert system.show(SERVICE, "ActiveState") == "inactive"
    assert "no session" in paddock(system, "ps")
    assert system.show(SERVICE, "ActiveState") == "active"
    assert system.show(SERVICE, "StatusText").startswith("0 sessions live")
    status = Path(f"/proc/{system.main_pid(SERVICE)}/status").read_text()
    assert f"Uid:\t{booted.UID}\t{booted.UID}" in status
    environment = Path(f"/proc/{system.main_pid(SERVICE)}/environ").read_bytes()
    assert b"LISTEN_FDS=1" in environment, "it was handed its socket"


def _answers_the_user_and_root_alone(system: Booted) -> None:
    """Another user does not get through the socket's mode; root does."""
    words = ("curl", "--silent", "--unix-socket", ADDRESS, "http://paddock/v1/sessions")
    assert system.run(*words, user=True).returncode == 0
    assert system.run(*words).returncode == 0
    stranger = ("setpriv", "--reuid=64998", "--regid=64998", "--clear-groups")
    assert system.run(*stranger, *words).returncode != 0


def _reloads(system: Booted) -> None:
    """SIGHUP through systemctl reads the settings again; the main process and its session are the same as before."""
    create(system, "long", "sleep 1000")
    before = (system.main_pid(SERVICE), session(system, "long")["pid"])
    settings = system.shared / "home/.config/paddock/service.toml"
    assert system.run("sh", "-c", "mkdir -p $(dirname $0); echo 'helpers = 1' >$0", settings, user=True).returncode == 0
    system.systemctl("reload", SERVICE)
    assert system.show(SERVICE, "ActiveState") == "active"
    assert (system.main_pid(SERVICE), session(system, "long")["pid"]) == before
    long = session(system, "long")
    assert long["state"] == "running"
    assert "sleep" in {process["name"] for process in long["processes"]}, "it sees what runs in the jail"
    system.until("it has obeyed", lambda: "settings reloaded" in system.journal())


def _logs_by_session(system: Booted) -> None:
    """The service's records are in the journal under its name, with their priority, each message once."""
    create(system, "quick", "true")
    system.until("it has ended", lambda: session(system, "quick")["state"] == "ended")
    create(system, "other", "true")
    lines = system.run("journalctl", "--output=json", "PADDOCK_SESSION=quick").stdout.splitlines()
    about = [json.loads(line) for line in lines]
    assert [entry["PADDOCK_STATE"] for entry in about] == ["created", "starting", "running", "ended"]
    assert all("session quick" in entry["MESSAGE"] for entry in about)
    assert all(entry["_TRANSPORT"] == "journal" and entry["PRIORITY"] == "6" for entry in about)
    assert all(entry["LOGGER"] == "paddock.service" for entry in about)
    assert not [entry for entry in about if entry["MESSAGE"].startswith("INFO")]


def _stops_in_order(system: Booted) -> None:
    """What the agent had committed is in the repository, its record says why it ended, no process is left."""
    create(system, "works", "git commit -q --allow-empty -m 'by the agent'; touch done; sleep 1000")
    root = system.shared / "home/repo"
    system.until("it has committed", (root / "done").exists)
    system.systemctl("stop", SOCKET, SERVICE)
    assert system.show(SERVICE, "Result") == "success"
    assert system.run("test", "-e", f"/sys/fs/cgroup/paddock.slice/{SERVICE}").returncode == 1
    log = system.run("git", "-C", root, "log", "--format=%s", user=True).stdout
    assert log.splitlines() == ["by the agent", "1"]
    system.systemctl("start", SOCKET)
    again = session(system, "works")
    assert (again["state"], again["outcome"]["reason"]) == ("ended", "service-stopped")


def test_what_starts_the_service_again_ends_no_session(system: Booted) -> None:
    """`paddock service stop --keep`, `systemctl restart`, as after an upgrade, and the watchdog, which ends what does
    not ping; the next one knows what it has, and a stop ends all.
    """
    create(system, "long", "sleep 1000")
    before = session(system, "long")["pid"]
    drop_in = f"/etc/systemd/system/{SERVICE}.d/watchdog.conf"
    for how in ("keep", "restart", "watchdog"):
        main = system.main_pid(SERVICE)
        if how == "keep":
            ended = system.run(system.installed.paddock, "service", "stop", "--system", "--keep")
            assert ended.returncode == 0, ended.stderr
            assert "sleep" in running(system)
            system.systemctl("start", SOCKET)
        elif how == "restart":
            system.run("mkdir", "-p", os.path.dirname(drop_in))
            system.run("tee", drop_in, stdin="[Service]\nWatchdogSec=2\n")
            system.systemctl("daemon-reload")
            system.systemctl("restart", SERVICE)
        else:
            os.kill(main, signal.SIGSTOP)
            system.until("systemd has started another one", lambda: system.show(SERVICE, "NRestarts") == "1")
            system.until("it is ready", lambda: system.show(SERVICE, "ActiveState") == "active")
            assert "Watchdog timeout" in system.journal()
            assert "most recent call first" in system.journal(), "it says where it stood still"
        found = session(system, "long")
        assert (found["state"], found["pid"]) == ("running", before), (how, system.journal())
        assert system.main_pid(SERVICE) not in (0, main)
        assert "sleep" in running(system)
    assert system.run(system.installed.paddock, "service", "stop", "--system").returncode == 0
    assert "sleep" not in running(system)
    assert system.run("test", "-e", f"/sys/fs/cgroup/paddock.slice/{SERVICE}").returncode == 1


def test_a_user_has_one_without_an_administrator(system: Booted) -> None:
    """Under the user's own manager: installed, activated by its socket, jails are made, audit is said to be missing."""
    runtime = f"/run/user/{booted.UID}"
    system.run("install", "-d", "-m", "0700", "-o", ACCOUNT, runtime)
    system.systemctl("stop", SOCKET)
    own = {"XDG_RUNTIME_DIR": runtime}
    started = system.run(
        *("systemd-run", "--unit=manager", f"--uid={ACCOUNT}", "--property=Delegate=yes", "--property=PAMName="),
        *(f"--setenv=XDG_RUNTIME_DIR={runtime}", "--setenv=SYSTEMD_UNIT_PATH=/run/.keep/units:", booted.INIT, "--user"),
    )
    assert started.returncode == 0, started.stderr
    sock = f"{runtime}/systemd/private"
    system.until("the user's manager runs", lambda: system.run("test", "-S", sock).returncode == 0)
    command = system.installed.paddock
    ended = system.run(command, "service", "install", "--user", "--now", user=True, env=own)
    assert ended.returncode == 0, ended.stderr + system.journal()
    address = f"{runtime}/paddock/control.sock"
    create(system, "mine", "grep Cap /proc/self/status; sleep 1000", address)
    assert session(system, "mine", address)["backend"] == "landlock+namespaces"
    shown = system.run(command, "service", "status", "--user", user=True, env=own)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "not available to user units" in shown.stdout
    assert "paddock.service" in shown.stdout
    removed = system.run(command, "service", "uninstall", "--user", user=True, env=own)
    assert removed.returncode == 0, removed.stderr
    assert "sleep" not in running(system)


def test_denials_of_the_kernels_audit_arrive_and_no_child_has_the_capability(
    installed: Installed, public_dir: Path
) -> None:
    """One unit switches audit on. The other gives one capability, which the service drops when it listens; ledgers of
    its sessions have every path.
    """
    need("systemd")
    need("audit")
    with booted.boot(installed, public_dir, initial=True) as up, ExitStack() as held:
        repository(up)
        ended = up.run(installed.paddock, "service", "install", "--system", "--root", "/")
        assert ended.returncode == 0, ended.stderr
        # This may be a container, whose namespaces the kernel takes for the initial ones all the same; and what is
        # installed for a test lies in /tmp.
        up.run("mkdir", "-p", "/run/systemd/system/paddock-audit.service.d")
        anywhere = "[Unit]\nConditionVirtualization=\n[Service]\nPrivateTmp=no\n"
        up.run("tee", "/run/systemd/system/paddock-audit.service.d/test.conf", stdin=anywhere)
        up.systemctl("daemon-reload")
        with features.switched_off():
            up.systemctl("start", "paddock-audit.service")
            known = audit_socket.status()
            assert known is not None
            assert known.enabled, up.journal()
            assert up.show("paddock-audit.service", "Result") == "success"
            assert up.show("paddock-audit.service", "ConditionResult") == "yes"
        held.enter_context(features.switched_on())
        # Root's manager hands its own runtime directory to all; the system's has none.
        up.run("mkdir", "-p", f"/run/systemd/system/{SERVICE}.d")
        up.run(
            "tee", f"/run/systemd/system/{SERVICE}.d/test.conf", stdin="[Service]\nUnsetEnvironment=XDG_RUNTIME_DIR\n"
        )
        up.systemctl("daemon-reload")
        up.systemctl("start", SOCKET)
        paddock(up, "ps")
        asking = up.shared / "home/.local/state/paddock/run/audit.sock"
        up.until("the audit is heard", asking.exists)
        secret = up.shared / "home/secret"
        up.run("sh", "-c", "echo x >$0", secret, user=True)
        # Where jails have mounts the file is not there at all, and Landlock is not asked.
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(up.shared / "home"), "PADDOCK_NO_USERNS": "1"}
        script = f"cat {secret}; cat {secret}.too; sleep 1000"
        create(up, "curious", script, options=["--freeze-root"], environment=environment)
        main = up.main_pid(SERVICE)
        sets = ("CapInh", "CapPrm", "CapEff", "CapAmb")
        family = [main, *map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())]
        assert len(family) > 1
        for pid in family:
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert [int(status[name], 16) for name in sets] == [0, 0, 0, 0], f"{pid}: {status['Name']}"
            assert int(status["CapBnd"], 16) == 1 << 37, "the unit's one capability, and nothing else"
        words = (installed.paddock, "run", "--freeze-root", "--session", "beside", "--", "cat", secret)
        at = up.shared / "home/repo"
        beside = up.run("sh", "-c", 'cd "$0"; exec "$@"', at, *words, user=True, env={"PADDOCK_NO_USERNS": "1"})
        assert "Permission denied" in beside.stderr
        up.systemctl("stop", SOCKET, SERVICE)
        for name in ("curious", "beside"):
            told = [json.loads(line) for line in paddock(up, "denials", name, "--json").splitlines()]
            assert [(each["layer"], each["path"]) for each in told] == [("landlock", str(secret))], name
