"""`paddock service` and the units themselves, on a systemd that was booted for the test."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import booted
from tests.support.booted import ACCOUNT, Booted
from tests.support.features import need
from tests.support.install import ROOT, Installed

SERVICE = f"paddock@{ACCOUNT}.service"
SOCKET = f"paddock@{ACCOUNT}.socket"


@pytest.fixture(scope="module")
def machine(installed: Installed) -> Iterator[Booted]:
    """A booted system."""
    need("systemd")
    with booted.shared(installed) as up:
        yield up


@pytest.fixture
def system(machine: Booted) -> Iterator[Booted]:
    """The same, on which nothing of Paddock is installed yet."""
    yield machine
    machine.clean()


def service(system: Booted, *words: str, status: int = 0) -> str:
    """`paddock service WORDS` as root; what it prints on stdout, and on stderr where it fails."""
    ended = system.run(system.installed.paddock, "service", *words)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stderr if status else ended.stdout


def test_systemd_finds_nothing_wrong_with_the_units(system: Booted) -> None:
    """`systemd-analyze verify` is silent on the units of both scopes; an unknown setting would be told. What counts
    against their security is written down.
    """
    service(system, "install", "--system")
    verified = system.run("systemd-analyze", "verify", SERVICE, SOCKET, "paddock-audit.service", "paddock.slice")
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    service(system, "install", "--user", "--root", str(system.shared))
    (unit,) = system.shared.rglob("systemd/user/paddock.service")
    around = {"SYSTEMD_UNIT_PATH": f"{unit.parent}:", "XDG_RUNTIME_DIR": "/run"}
    verified = system.run("systemd-analyze", "--user", "verify", unit, env=around)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    broken = unit.with_name("broken.service")
    broken.write_text(unit.read_text().replace("OOMPolicy=", "OOMPolizei="))
    verified = system.run("systemd-analyze", "--user", "verify", broken, env=around)
    assert "OOMPolizei" in verified.stderr
    # Every setting that `systemd-analyze security` misses in paddock@.service has its reason in systemd/README.md.
    ended = system.run("systemd-analyze", "security", "--offline=yes", "--json=short", SERVICE)
    told = {row["json_field"].partition("_")[0] for row in json.loads(ended.stdout) if float(row["exposure"] or 0) > 0}
    written = (ROOT / "systemd/README.md").read_text()
    table = written.rpartition("| setting | why |")[2]
    known = set(re.findall(r"`(\w+)`", table))
    assert told <= known, f"not in systemd/README.md: {sorted(told - known)}"
    assert {"RestrictNamespaces", "Delegate"} <= told
    assert not told & {"NoNewPrivileges", "UserOrDynamicUser", "PrivateDevices", "ProtectKernelModules"}
    for each, worst in ((SERVICE, 5.5), ("paddock-audit.service", 2.5)):
        shown = system.run("systemd-analyze", "security", "--offline=yes", each).stdout
        exposure = re.search(rf"exposure level for {re.escape(each)}: ([\d.]+)", shown)
        assert exposure is not None
        assert float(exposure[1]) <= worst
        version = system.run("systemctl", "--version").stdout.split()[1]
        if f"systemd {version}. Lower is better" in written:  # others count differently
            assert f"| `{each.replace(ACCOUNT, '')}` | {exposure[1]} " in written


def test_a_unit_that_systemd_has_given_up_is_named_with_the_way_out(system: Booted) -> None:
    """After a crash loop nobody answers: `paddock ps` says which command lets systemd try again, and that works."""
    # Root's, who can ask the manager here without a message bus.
    unit, socket = "paddock@root.service", "paddock@root.socket"
    service(system, "install", "--system")
    drop_in = Path("/run/systemd/system") / f"{unit}.d" / "crash.conf"
    system.run("mkdir", "-p", drop_in.parent)
    system.run("tee", drop_in, stdin="[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=10ms\n")
    system.systemctl("daemon-reload")
    system.systemctl("start", socket)

    def given_up() -> bool:
        system.run("systemctl", "start", unit)
        return system.run("systemctl", "is-failed", socket).returncode == 0

    system.until("systemd gives the unit up", given_up)
    said = system.run(system.installed.paddock, "ps")
    assert said.returncode == 125
    assert f"systemctl reset-failed {unit}" in said.stderr
    assert "journalctl -u" in said.stderr
    system.run("rm", drop_in)
    system.systemctl("daemon-reload")
    command = re.search(r"systemctl reset-failed .* && systemctl start \S+\.socket", said.stderr)
    assert command is not None
    assert system.run("sh", "-c", command[0]).returncode == 0
    ended = system.run(system.installed.paddock, "ps")
    assert ended.returncode == 0, ended.stderr + system.journal()


def test_jails_hold_all_their_promises_under_the_units_settings(system: Booted) -> None:
    """With everything that the unit takes away, `paddock doctor` proves every row, and delegated groups are there."""
    service(system, "install", "--system")
    drop_in = Path("/run/systemd/system") / f"{SERVICE}.d" / "doctor.conf"
    system.run("mkdir", "-p", drop_in.parent)
    words = f"[Service]\nType=oneshot\nRestart=no\nExecStart=\nExecStart={system.installed.paddock} doctor --json\n"
    system.run("tee", drop_in, stdin=f"{words}StandardOutput=file:{system.shared}/doctor.json\n")
    system.systemctl("daemon-reload")
    system.systemctl("start", SERVICE)
    document = json.loads((system.shared / "doctor.json").read_text())
    assert {(row["expected"], row["proven"]) for row in document["promises"]} == {("held", True)}
    layers = {row["layer"]: row["usable"] for row in document["layers"]}
    assert layers["namespaces"]
    assert layers["cgroup"]


def test_installing_twice_changes_nothing_and_removal_leaves_nothing(system: Booted) -> None:
    """The second time every file is unchanged; the socket that was asked for listens, for its user alone. Then, sockets
    are closed and disabled, files are gone, and a second removal finds nothing to do. A link that would start the
    socket at the next boot goes with the units, also when the manager has forgotten it.
    """
    first = service(system, "install", "--system", "--for", ACCOUNT, "--now")
    assert first.count("written") == 5
    again = service(system, "install", "--system", "--for", ACCOUNT, "--now")
    assert again.count("unchanged") == 5
    assert "written" not in again
    assert system.show(SOCKET, "ActiveState") == "active"
    found = system.run("stat", "--format=%U %a %F", f"/run/paddock/{ACCOUNT}/control.sock").stdout
    assert found == f"{ACCOUNT} 600 socket\n"
    document = json.loads(service(system, "status", "--system", "--json"))
    assert {file["state"] for file in document["files"]} == {"current"}
    assert document["units"][SOCKET]["ActiveState"] == "active"
    assert system.run("find", "/etc/systemd/system", "-name", f"paddock@{ACCOUNT}*").stdout
    service(system, "uninstall", "--system")
    assert system.run("find", "/etc/systemd/system", "/etc/tmpfiles.d", "-not", "-type", "d").stdout == ""
    assert system.run("systemctl", "is-active", SOCKET).stdout.strip() != "active"
    assert system.systemctl("list-units", "--plain", "--no-legend", "paddock*") == ""
    assert service(system, "uninstall", "--system").count("missing") == 5
    service(system, "install", "--system", "--for", ACCOUNT, "--now")
    system.systemctl("stop", SOCKET)
    service(system, "uninstall", "--system")
    assert system.run("find", "/etc/systemd/system", "-type", "l").stdout == ""


def test_an_edited_unit_stops_the_installation_and_survives_the_removal(system: Booted) -> None:
    """What an administrator wrote is neither overwritten nor removed, and he is told about drop-ins."""
    service(system, "install", "--system")
    path = "/etc/systemd/system/paddock@.service"
    system.run("sed", "-i", "s/^WatchdogSec=.*/WatchdogSec=5min/", path)
    said = service(system, "install", "--system", status=125)
    assert "[service-edited]" in said
    assert f"{path}: edited" in said
    assert "systemctl edit" in said
    assert "edited" in system.run(system.installed.paddock, "service", "status", "--system").stdout
    removed = system.run(system.installed.paddock, "service", "uninstall", "--system")
    assert removed.returncode == 1
    assert "WatchdogSec=5min" in system.run("cat", path).stdout
    assert system.run("ls", "/etc/systemd/system").stdout == "paddock@.service\n"


def test_only_root_installs_for_the_system_and_only_users_get_a_service(system: Booted) -> None:
    """An ordinary user is refused with the other way, an unknown user and root are refused by name."""
    ended = system.run(system.installed.paddock, "service", "install", "--system", user=True)
    assert ended.returncode == 125
    assert "[service-needs-root]" in ended.stderr
    assert "--user" in ended.stderr
    for name in ("root", "no-such-user"):
        said = service(system, "install", "--system", "--for", name, "--now", status=125)
        assert "[service-user]" in said
    assert system.run("ls", "/etc/systemd/system").stdout == ""
    shown = system.run(system.installed.paddock, "service", "install", "--system", "--dry-run", user=True)
    assert shown.returncode == 0
    assert f"ExecStart={system.installed.paddock} serve" in shown.stdout


def test_audit_cannot_be_switched_on_from_another_pid_namespace(system: Booted) -> None:
    """The booted system is a container to the kernel: the unit skips itself there, and by hand the reason is told."""
    service(system, "install", "--system")
    system.systemctl("start", "paddock-audit.service")
    assert system.show("paddock-audit.service", "ConditionResult") == "no"
    said = service(system, "enable-audit", status=125)
    assert "[audit-unavailable]" in said
