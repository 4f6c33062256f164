"""Where there are no mounts: which worktrees get a private git directory, and how their `.git` is written and moved."""

import errno
import os
from pathlib import Path

import pytest

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.private import pointer, record, swap
from launcher.vcs.private.pointer import Holder
from policy.errors import Refusal
from policy.launch import Git
from tests.support.derived import CHECKOUT, GUARD, LINKED, OWN, ROOT, RULES, access, context, plan, refused, submodule

PRIVATE = RULES._replace(git="private")
AUTO = RULES._replace(git="auto")
MADE = LINKED._replace(created=True, repositories=(("", ROOT, OWN, OWN, "", "sha1", (f"{OWN}/objects",)),))


def test_a_worktree_that_paddock_made_is_swapped_with_a_warning() -> None:
    """The command writes its private git directory, reads the repository's objects, and nothing is bound."""
    found = plan(AUTO, git=MADE, support=GUARD)
    assert (found.git, found.binds) == ("private", ())
    assert ("@git/git", "rwx", "--git private") in found.grants
    assert access(found, f"{OWN}/objects/x") == "r"
    assert access(found, f"{OWN}/config") == ""
    assert [text for text in found.warnings if f"{ROOT}/.git points to a git directory that the command writes" in text]
    assert not [text for text in plan(AUTO, git=MADE).warnings if "run no git there" in text]


@pytest.mark.parametrize("git", [LINKED, MADE._replace(obstacles=("x",))])
def test_others_are_read_only_or_refused(git: Git) -> None:
    """Left to itself git is read-only, and that is said; what was asked for by name never does less."""
    found = plan(AUTO, git=git, support=GUARD)
    assert found.git == "readonly"
    assert [text for text in found.warnings if "git is read-only, commits are not possible" in text]
    assert refused(rules=PRIVATE, git=git, support=GUARD).reference == "git-private-impossible"


@pytest.mark.parametrize("git", [MADE._replace(inside=(f"{ROOT}/lib/.git",)), MADE._replace(doubtful=("x",))])
def test_what_a_command_can_bring_about_opens_nothing_to_the_next(git: Git) -> None:
    """Read-only git reads all of the repository, the passwords in its configuration too: so it is a refusal."""
    error = refused(rules=AUTO, git=git, support=GUARD)
    assert (error.reference, "an agent made it" in error.hint) == ("git-private-impossible", True)


def test_a_main_checkout_is_refused_with_the_way_out() -> None:
    """Its repository lies where the command may write, whatever is swapped."""
    error = refused(rules=PRIVATE, git=CHECKOUT, support=GUARD)
    assert (error.reference, "paddock run --new" in error.hint) == ("git-private-impossible", True)


def test_what_is_not_granted_cannot_be_hidden() -> None:
    """A submodule's private git directory lies in the one that the command writes."""
    about = context(submodule("lib", f"{ROOT}/lib", granted=False), freeze_root=True)
    found = plan(AUTO, about=about, git=MADE, support=GUARD, more={f"{ROOT}/lib": "dir"})
    assert (found.git, any("submodule lib" in text for text in found.warnings)) == ("readonly", True)


def test_a_pointer_into_a_private_git_directory_is_refused(tmp_path: Path) -> None:
    """Whatever it says of itself, in a worktree or in one that an agent made there."""
    state, root = tmp_path / "state/git/id", tmp_path / "work"
    for path in (state / "git/objects", state / "git/refs", root):
        path.mkdir(parents=True)
    (state / "git/HEAD").write_text("ref: refs/heads/x\n")
    (state / "git/config").write_text(f"[core]\n\tworktree = {root}\n")
    (root / ".git").write_text(f"gitdir: {state}/git\n")
    assert checkout.find(str(root), Present(), exact=True).kind == "submodule", "the twin: it would pass as one"
    (state / "record").write_bytes(record.MAGIC + b"\0end")
    with pytest.raises(Refusal) as caught:
        checkout.find(str(root), Present(), exact=True)
    assert (caught.value.reference, "private git directory" in caught.value.context) == ("git-pointer-invalid", True)
    known = Present({f"{root}/.git": b"gitdir: ../elsewhere\n"})
    assert (known.kind(f"{root}/.git"), known.read(f"{root}/.git")) == ("file", b"gitdir: ../elsewhere\n")


def test_what_cannot_be_moved_away_is_copied_or_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the state on another file system; a FIFO is never opened."""
    rename = os.rename

    def between(source: str, target: str, **directories: int) -> None:
        if target.startswith("/"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target, **directories)

    monkeypatch.setattr(os, "rename", between)
    (tmp_path / "aside").mkdir()
    entry = tmp_path / ".git"
    with Holder(str(tmp_path), str(tmp_path)) as holder:
        entry.write_text("planted")
        assert Path(holder.put_aside(f"{tmp_path}/aside")).read_text() == "planted"
        entry.symlink_to("/somewhere")
        assert Path(holder.put_aside(f"{tmp_path}/aside")).read_text() == "/somewhere"
        os.mkfifo(entry)
        assert holder.put_aside(f"{tmp_path}/aside") == ""
        entry.mkdir(mode=0)
        aside = Path(holder.put_aside(f"{tmp_path}/aside"))
        assert (aside.parent, aside.stat().st_mode & 0o777) == (tmp_path, 0)
        assert holder.stat() is None


def test_a_full_disk_leaves_no_pointer_to_the_agents_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, stays written down, and is put back when there is room again."""
    root, directory = tmp_path / "work", tmp_path / "state"
    for path in (root, directory, tmp_path / "git"):
        path.mkdir()
    (root / ".git").write_text("gitdir: ../git\n")
    one = record.Repository("", str(root), str(tmp_path / "git"), str(tmp_path / "git"), "", None, None, "sha1", ())
    swap.swap(str(directory), record.Record(str(root), "linked", record.SWAPPED, (one,)))
    assert (root / ".git").read_text() == f"gitdir: {directory}/git\n"

    def full(self: Holder, *words: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Holder, "put", full)
        with pytest.raises(Refusal) as caught:
            swap.settle(str(directory))
    assert (caught.value.reference, (root / ".git").exists()) == ("dock-failed", False)
    assert [docked.as_dict() for docked in swap.settle(str(directory))] == [
        {"path": str(root), "action": "restored", "aside": ""}
    ]
    assert (root / ".git").read_text() == "gitdir: ../git\n"
    (directory / record.SWAPPED_NOW).write_bytes(b"half")
    with pytest.raises(Refusal) as caught:
        swap.settle(str(directory))
    assert (caught.value.reference, swap.is_swapped(str(directory))) == ("swap-damaged", True)


def _linked(tmp_path: Path) -> tuple[Path, Path, record.Record]:
    """A worktree's directory, Paddock's with a record of it, and the record."""
    root, directory = tmp_path / "tree", tmp_path / "state"
    for path in (root, directory, tmp_path / "git"):
        path.mkdir()
    own = f"{tmp_path}/git"
    one = record.Repository("", str(root), own, own, "", None, None, "sha1", ())
    known = record.Record(str(root), "linked", record.SWAPPED, (one,))
    record.write(str(directory), known)
    return root, directory, known


@pytest.mark.parametrize("way", ["{tree}/ln", "ln", "ln/../git", "{tree}/ln/../git", "../tree/ln"])
def test_a_pointer_through_an_agents_link_is_not_right(tmp_path: Path, way: str) -> None:
    """It leads to the trusted git directory until a later session turns the link: written anew, never remembered."""
    root, directory, known = _linked(tmp_path)
    (root / "ln").symlink_to("../git")
    text = f"gitdir: {way.format(tree=root)}\n"
    (root / ".git").write_text(text)
    with pytest.raises(Refusal) as caught:
        swap.swap(str(directory), known)
    assert (caught.value.reference, "worktree dock" in caught.value.hint) == ("git-pointer-changed", True)
    assert ((root / ".git").read_text(), swap.is_swapped(str(directory))) == (text, False)
    (done,) = swap.dock_worktree(str(directory))
    assert (done.action, Path(done.aside).read_text()) == ("restored", text)
    assert (root / ".git").read_text() == f"gitdir: {tmp_path}/git\n"
    swap.swap(str(directory), known)
    assert [docked.action for docked in swap.dock_worktree(str(directory))] == ["restored"]


def test_what_git_writes_is_right_unless_it_has_a_second_name(tmp_path: Path) -> None:
    """Absolute, or relative as with worktree.useRelativePaths. Whoever has another name of the file writes it later."""
    root, directory, _ = _linked(tmp_path)
    for text in (f"gitdir: {tmp_path}/git\n", "gitdir: ../git\n", "gitdir: ../git"):
        (root / ".git").write_text(text)
        assert [docked.action for docked in swap.dock_worktree(str(directory))] == ["right"]
        assert (root / ".git").read_text() == text
    (root / "other").hardlink_to(root / ".git")
    assert [docked.action for docked in swap.dock_worktree(str(directory))] == ["restored"]
    assert (root / ".git").stat().st_nlink == 1


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"gitdir: ../git", "../git"), (b"gitdir: ../git\r\n\n\r", "../git"), (b"gitdir: ../git\0junk\n", "../git"),
        (b"gitdir: ../git\n\0", "../git\n"), (b"gitdir: ../a\nb\n", "../a\nb"), (b"gitdir: \0", ""),
        (b"gitdir: \r\n", None), (b"gitdir:../git\n", None), (b"", None), (None, None),
    ],
)  # fmt: skip
def test_a_pointer_is_read_as_git_reads_it(content: bytes | None, path: str | None) -> None:
    """Line ends are cut off first; then it ends at a NUL, and what has one is put aside where it should be right."""
    assert pointer.text(content) == path
    if content and b"\0" in content:
        assert (pointer.target(content, "/"), pointer.named(content, "/")) == (None, None)
