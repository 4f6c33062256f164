"""Where control groups can be made, by what the kernel says about hierarchies and mounts."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.jail import cgroup
from launcher.jail.cgroup import CPU, MEMORY, PIDS, Place

ALL = (MEMORY, PIDS, CPU)


def tree(root: Path, *groups: str, handed: str = "") -> None:
    """Directories that look like control groups of version 2, of which each hands `handed` down."""
    for group in groups:
        directory = root / group.strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").touch()
        (directory / "cgroup.subtree_control").write_text(handed)


def mount(point: Path, kind: str, options: str = "", root: str = "/") -> str:
    """A line of mountinfo."""
    plain = str(point).replace(" ", "\\040")
    return f"40 31 0:37 {root} {plain} rw,relatime shared:9 - {kind} {kind} rw,{options}\n"


def places(own: str, mounts: str, wanted: Iterable[str]) -> dict[str, Place]:
    """See `cgroup.places`."""
    return cgroup.places(own.encode(), mounts.encode(), wanted)


def test_version_1_is_used_below_the_callers_own_group(tmp_path: Path) -> None:
    """Each controller has its own hierarchy and its own path; `cpu,cpuacct` share one."""
    tree(tmp_path, "memory/a/b", "pids", "cpu,cpuacct/c")
    own = "4:memory:/a/b\n3:cpu,cpuacct:/c\n2:pids:/\n1:name=systemd:/x\n"
    mounts = (
        mount(tmp_path / "memory", "cgroup", "memory")
        + mount(tmp_path / "pids", "cgroup", "pids")
        + mount(tmp_path / "cpu,cpuacct", "cgroup", "cpu,cpuacct")
        + mount(tmp_path / "systemd", "cgroup", "xattr,name=systemd")
    )
    assert places(own, mounts, ALL) == {
        MEMORY: Place(1, MEMORY, f"{tmp_path}/memory/a/b"),
        PIDS: Place(1, PIDS, f"{tmp_path}/pids"),
        CPU: Place(1, CPU, f"{tmp_path}/cpu,cpuacct/c"),
    }
    assert set(places(own, mounts, (PIDS,))) == {PIDS}


def test_a_container_sees_its_own_part_of_a_hierarchy(tmp_path: Path) -> None:
    """The mount's root is taken off; a group that lies outside of it, and by name only inside, cannot be used."""
    tree(tmp_path, "pids/inner")
    mounts = mount(tmp_path / "pids", "cgroup", "pids", root="/docker/1")
    assert places("2:pids:/docker/1/inner\n", mounts, ALL)[PIDS].parent == f"{tmp_path}/pids/inner"
    assert places("2:pids:/docker/12\n", mounts, ALL) == {}
    assert places("2:pids:/\n", mounts, ALL) == {}


def test_version_2_needs_controllers_that_are_handed_down(tmp_path: Path) -> None:
    """A group with processes hands nothing down, so groups are made beside it, if the one above does."""
    tree(tmp_path, "app.slice", handed="cpu memory pids\n")
    tree(tmp_path, "app.slice/own.scope")
    mounts = mount(tmp_path, "cgroup2")
    found = places("0::/app.slice/own.scope\n", mounts, ALL)
    assert found == {name: Place(2, name, f"{tmp_path}/app.slice") for name in ALL}
    assert places("0::/app.slice\n", mounts, (MEMORY,))[MEMORY].parent == f"{tmp_path}/app.slice"


def test_version_2_without_controllers_is_of_no_use(tmp_path: Path) -> None:
    """Nothing is claimed that the group could not hold, and no group further above is tried."""
    tree(tmp_path, "a", handed="memory pids")
    tree(tmp_path, "a/b", handed="cpu")
    tree(tmp_path, "a/b/c")
    assert places("0::/a/b/c\n", mount(tmp_path, "cgroup2"), (MEMORY, PIDS)) == {}


def test_both_versions_at_once(tmp_path: Path) -> None:
    """What version 1 has it serves; the rest is looked for in version 2."""
    tree(tmp_path, "pids")
    tree(tmp_path, "unified", handed="memory")
    mounts = mount(tmp_path / "unified", "cgroup2") + mount(tmp_path / "pids", "cgroup", "pids")
    found = places("8:pids:/\n0::/\n", mounts, (MEMORY, PIDS))
    assert {name: place.version for name, place in found.items()} == {MEMORY: 2, PIDS: 1}


def test_what_cannot_be_written_is_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary users see groups that they may not write."""
    tree(tmp_path, "pids")
    mounts = mount(tmp_path / "pids", "cgroup", "pids")
    assert places("8:pids:/\n", mounts, ALL)
    for name in ("pids", "cgroup.procs"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, _, name=name: not path.endswith(name))
            assert places("8:pids:/\n", mounts, ALL) == {}


def test_odd_names_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    """A mount point with a space in it."""
    tree(tmp_path, "two words")
    found = places("8:pids:/\n", mount(tmp_path / "two words", "cgroup", "pids"), ALL)
    assert found[PIDS].parent == f"{tmp_path}/two words"


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    """No control groups, none mounted, or a path that has gone."""
    assert places("", "", ALL) == {}
    assert places("0::/\n", "", ALL) == {}
    assert places("0::/gone\n8:pids:/gone\n", mount(tmp_path, "cgroup2"), ALL) == {}


def test_a_group_that_cannot_be_bounded_leaves_nothing(tmp_path: Path) -> None:
    """In a directory that is no control group there is no file for the limit: OSError, and all is as before."""
    parent = tmp_path / "parent"
    parent.mkdir()
    with pytest.raises(FileNotFoundError):
        cgroup.make({PIDS: Place(1, PIDS, str(parent))}, {PIDS: 5}, str(tmp_path / "record"))
    assert list(parent.iterdir()) == []
    assert list(tmp_path.iterdir()) == [parent]


def test_only_groups_of_paddocks_are_removed(tmp_path: Path) -> None:
    """A record that names anything else changes nothing, and what has gone is no failure."""
    for name in ("paddock-a", "precious"):
        (tmp_path / name).mkdir()
    record = tmp_path / "record"
    record.write_text(f"{tmp_path}/precious\n{tmp_path}/paddock-a\n{tmp_path}/paddock-gone\n")
    assert cgroup.remove_recorded(str(record)) == []
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["precious", "record"]
    assert cgroup.remove_recorded(str(tmp_path / "no-record")) == []


def test_a_group_that_stays_is_told(tmp_path: Path) -> None:
    """A directory with something in it cannot be removed, and the caller learns which."""
    (tmp_path / "paddock-full" / "child").mkdir(parents=True)
    (failure,) = cgroup.remove([f"{tmp_path}/paddock-full"])
    assert failure.startswith(f"{tmp_path}/paddock-full: ")


def test_what_is_mounted_elsewhere_says_nothing_of_control_groups(tmp_path: Path) -> None:
    """A jail may rename a directory above somebody's mount, and the kernel writes most characters as they are."""
    tree(tmp_path, "unified", handed="memory")
    true = mount(tmp_path / "unified", "cgroup2")
    for separator in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028":
        forged = separator.join(("", "9", "9", "0:9", "/", "/evil", "rw", "-", "cgroup2", "cgroup2", "rw", ""))
        odd = mount(tmp_path / forged.replace("/", "_"), "tmpfs") + mount(tmp_path / f"x{separator}y", "tmpfs")
        for mounts in (odd + true, true + odd):
            assert places("0::/\n", mounts, (MEMORY,))[MEMORY].parent == f"{tmp_path}/unified"
        assert cgroup.hierarchies(odd.encode()) == []
