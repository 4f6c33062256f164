"""The record of trees that jails could write, and what links in them grant: nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from launcher.session import places, written
from policy import promises
from policy.errors import Refusal
from policy.toolchains import discover
from tests.support.derived import ROOT, access, plan, refused
from tests.support.toolchains import TABLE, Disk, found, granted, link, program, put

LINKS = {"/srv/shared/cache": "-> /srv/data", "/srv/shared/near": "-> there", "/srv/shared/there/x": "file",
         "/home/u/own": "-> /srv/data", "/srv/shared/tool": "-> /srv/data/y"}  # fmt: skip


@pytest.fixture
def where(tmp_path: Path) -> places.Places:
    return places.places({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")})


@pytest.mark.parametrize("option", ["read", "write"])
def test_a_link_in_a_tree_that_agents_could_write_grants_nothing(option: str) -> None:
    """The one who may write a directory decides where names in it lead; the refusal says which place to name."""
    asked: dict[str, Any] = {option: (("/srv/shared/cache", "--x"),)}
    error = refused(more=LINKS, written=("/srv/shared",), **asked)
    assert error.reference == "grant-leaves-written-tree"
    assert "/srv/shared" in error.message
    assert "/srv/data" in error.hint
    assert "r" in access(plan(more=LINKS, **asked), "/srv/data/y")


@pytest.mark.parametrize("path", ["/home/u/own", "/srv/data", "/srv/shared/near", f"{ROOT}/link"])
def test_other_links_go_on_working(path: str) -> None:
    """The user's own, one that stays in its tree, and one that stays in the worktree."""
    plan(more=LINKS, written=("/srv/shared", ROOT), read=((path, "--ro"),))


def test_a_programme_behind_such_a_link_is_not_granted(tmp_path: Path) -> None:
    """Neither for reading, nor what else is found from it."""
    home, shared = tmp_path / "home", tmp_path / "shared"
    put(tmp_path / "private/pyvenv.cfg")
    python = program(tmp_path / "private/bin/python")
    link(shared / "bin/python", python)
    put(home / "x")
    tree = str(tmp_path / "tree")
    entry = str(shared / "bin")
    assert granted(found(home, entry), python)
    closed = discover(Disk(home, {}), entry, TABLE, worktree=tree, written=(str(shared),))
    assert not granted(closed, python)


def test_what_is_granted_is_on_record(where: places.Places, tmp_path: Path) -> None:
    """The worktree, and every directory outside of it that can be written; nothing twice, and not the jail's own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    grants = ((ROOT, "rwx", "worktree"), (f"{ROOT}/inner", "rwx", "x"), (str(shared), "rw", "--rw"),
              ("/usr", "rx", "default"), ("@home", "rwx", "home"), ("/tmp", "rwx", promises.OWN_TMP))  # fmt: skip
    made = plan().replace(grants=grants)
    assert written.trees(where) == ()
    for _ in range(2):
        written.remember(where, made)
        assert written.trees(where) == (ROOT, str(shared))
    assert os.stat(written.path_of(where)).st_mode & 0o777 == 0o600


def test_an_entry_that_was_cut_short_spoils_no_other(where: places.Places) -> None:
    """After a power failure: what is whole counts, and what comes next is whole, too."""
    written.remember(where, plan().replace(grants=()))
    with open(written.path_of(where), "ab") as file:
        file.write(b"/half/of-a")
    written.remember(where, plan().replace(grants=(), worktree="/next"))
    assert {ROOT, "/next"} <= set(written.trees(where))


def test_a_record_of_somebody_else_is_not_believed(where: places.Places) -> None:
    """Nor taken for an empty one."""
    written.remember(where, plan().replace(grants=()))
    os.chmod(written.path_of(where), 0o644)
    with pytest.raises(Refusal, match="private file"):
        written.trees(where)


def test_a_full_record_forgets_what_is_gone(
    where: places.Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worktrees come and go by the thousand; those that are there stay."""
    monkeypatch.setattr(written, "MOST", 3)
    for name in ("/gone/1", str(tmp_path), "/gone/2", "/gone/3"):
        written.remember(where, plan().replace(grants=(), worktree=name))
    assert written.trees(where) == (str(tmp_path), "/gone/3")
