"""The units' text and files: rendering, what is told apart on disk, what is kept."""

import os
import re
import sys
from pathlib import Path

import pytest

from launcher.service import units
from launcher.service.units import Scope, State, render
from policy.errors import Refusal
from tests.support.install import ROOT

COMMAND = Path("/opt/paddock/bin/paddock")
UNITS = [path for kind in ("system", "user") for path in sorted((ROOT / "systemd" / kind).iterdir())]


@pytest.fixture
def found(tmp_path: Path) -> list[units.File]:
    """All files of the system's scope, in place as they were just written."""
    rendered = render(Scope.SYSTEM, COMMAND, tmp_path / "units", tmp_path / "tmpfiles.d")
    for file in units.look(rendered):
        assert file.state is State.MISSING
        units.write(file)
    return units.look(rendered)


@pytest.mark.parametrize("scope", Scope)
def test_every_unit_of_the_sources_is_installed(scope: Scope) -> None:
    """No unit lies in systemd/ that nobody puts in place."""
    assert set(units.UNITS[scope]) == {path.name for path in (ROOT / "systemd" / scope.value).iterdir()}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_directive_beyond_the_bare_ones_has_its_reason(path: Path) -> None:
    """Each paragraph of settings is led by a comment, so that nobody has to guess why it is there."""
    plain = {
        "Description",
        "ExecStart",
        "Type",
        "User",
        "WorkingDirectory",
        "Slice",
        "WantedBy",
        "Also",
        "ListenStream",
    }
    bare = []
    explained = False
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            explained = True
        elif not line or line.startswith("["):
            explained = False
        elif not explained and line.partition("=")[0] not in plain:
            bare.append(line)
    # Settings that share a comment follow it without an empty line, so what is left had none at all.
    assert not bare


@pytest.mark.parametrize("path", UNITS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_unit_has_what_breaks_jails(path: Path) -> None:
    """Settings that were tried and forbid namespaces, mounts or delegation are in no unit that runs agents."""
    if path.name == "paddock-audit.service":
        return
    settings = dict(line.split("=", 1) for line in path.read_text().splitlines() if re.match(r"[A-Z]\w+=", line))
    assert not settings.keys() & {"SystemCallFilter", "PrivateUsers", "ProtectControlGroups", "ProtectKernelTunables",
                                  "MemoryDenyWriteExecute", "ProtectKernelLogs", "ProtectProc"}  # fmt: skip
    assert settings.get("RestrictNamespaces", "") != "yes"
    if path.suffix == ".service":
        assert settings["Delegate"] == "yes"
        assert settings["KillMode"] == "process", "sessions outlive a service that is killed or restarted"
        assert settings.get("CapabilityBoundingSet", "") in ("CAP_AUDIT_READ", "")


def test_what_was_just_written_is_current(found: list[units.File]) -> None:
    """Rendering again gives the same bytes, readable by all, with the command's absolute path."""
    assert {file.state for file in found} == {State.CURRENT}
    service = found[0].path
    assert f"ExecStart={COMMAND} serve\n" in service.read_text()
    assert service.stat().st_mode & 0o777 == 0o644


def test_another_place_of_the_command_makes_a_unit_outdated(found: list[units.File], tmp_path: Path) -> None:
    """After a move of the installation the unit is ours still, and is written anew."""
    (service, *others) = units.look(
        render(Scope.SYSTEM, Path("/usr/bin/paddock"), tmp_path / "units", tmp_path / "tmpfiles.d")
    )
    assert service.state is State.OUTDATED
    assert State.CURRENT in {file.state for file in others}
    units.refuse_kept([service, *others], "")


@pytest.mark.parametrize("change", ["edited", "foreign", "binary", "masked", "linked"])
def test_what_people_changed_is_kept(change: str, found: list[units.File], tmp_path: Path) -> None:
    """An edited, foreign or masked file stops the installation before anything is written."""
    path = found[0].path
    if change == "edited":
        path.write_text(path.read_text().replace("WatchdogSec=30", "WatchdogSec=300"))
    elif change == "foreign":
        path.write_text("[Service]\nExecStart=/bin/true\n")
    elif change == "binary":
        path.write_bytes(b"\xff\xfe")
    else:
        path.unlink()
        path.symlink_to("/dev/null" if change == "masked" else tmp_path / "elsewhere")
    again = units.look([file.rendered for file in found])
    assert again[0].state.value == {"binary": "foreign", "linked": "foreign"}.get(change, change)
    with pytest.raises(Refusal) as refused:
        units.refuse_kept(again, "systemctl edit x")
    assert refused.value.reference == "service-edited"
    assert str(path) in refused.value.context
    assert "systemctl edit x" in refused.value.hint


def test_the_commands_path_is_written_so_that_systemd_reads_it_back() -> None:
    """Blanks, quotes and specifiers in a path are escaped; what cannot be escaped is refused."""
    assert units.quoted(Path("/opt/a b/paddock")) == '"/opt/a b/paddock"'
    assert units.quoted(Path('/opt/"/paddock')) == '"/opt/\\"/paddock"'
    assert units.quoted(Path("/opt/50%/paddock")) == "/opt/50%%/paddock"
    for bad in (Path("/opt/a\nExecStart=/bin/sh"), Path("paddock")):
        with pytest.raises(Refusal) as refused:
            units.quoted(bad)
        assert refused.value.reference == "service-path"


def test_a_failed_write_leaves_no_rest(found: list[units.File], tmp_path: Path) -> None:
    """Where a directory stands in the way, one error says so and no temporary file stays."""
    path = found[0].path
    path.unlink()
    path.mkdir()
    with pytest.raises(Refusal) as refused:
        units.write(found[0])
    assert refused.value.reference == "service-unwritable"
    assert not [name for name in os.listdir(tmp_path / "units") if name.startswith(".")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's own files are trusted")
def test_only_what_root_alone_can_change_is_trusted(public_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file in the environment that others can write, or that is another's, stops a system unit."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "path", [str(public_dir)])
    command = public_dir / "environment/bin/paddock"
    command.parent.mkdir(parents=True)
    command.write_text("")
    inside = public_dir / "environment/lib.py"
    inside.write_text("")
    units.check_trusted(command)

    inside.chmod(0o666)
    with pytest.raises(Refusal) as refused:
        units.check_trusted(command)
    assert refused.value.reference == "service-not-trusted"
    assert "lib.py has mode 0666" in refused.value.context

    inside.chmod(0o644)
    os.chown(inside, 65534, 65534)
    with pytest.raises(Refusal) as refused:
        units.check_trusted(command)
    assert "lib.py belongs to user 65534" in refused.value.context

    os.chown(inside, 0, 0)
    public_dir.chmod(0o700)
    with pytest.raises(Refusal) as refused:
        units.check_trusted(command)
    assert refused.value.reference == "service-not-reachable"


def test_scopes_exclude_each_other() -> None:
    """--system and --user at once is a mistake; root means the system without either."""
    with pytest.raises(Refusal, match="exclude"):
        units.scope_of(system=True, user=True)
    assert units.scope_of(system=False, user=True) is Scope.USER
    assert units.scope_of(system=False, user=False) is (Scope.SYSTEM if os.geteuid() == 0 else Scope.USER)
