"""Nothing that a repository or an environment names is executed, though plain git would execute it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.vcs.git import Git, GitFailed
from tests.support.identity import SYSTEM_PATH


class Place(NamedTuple):
    """A repository with a programme `canary` beside it, which leaves `mark` behind when it is executed."""

    root: Path
    repo: Path
    canary: Path
    mark: Path

    @property
    def git_dir(self) -> Path:
        return self.repo / ".git"


def plain(
    place: Place, *words: str, env: dict[str, str] | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["git", *words], cwd=place.repo, env={"PATH": SYSTEM_PATH, "HOME": str(place.root), **(env or {})},
        input=text, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hardening")
    repo = root / "repo"
    repo.mkdir()
    place = Place(root, repo, root / "canary", root / "mark")
    plain(place, "init", "-q", "-b", "main")
    plain(place, "config", "user.name", "T")
    plain(place, "config", "user.email", "t@example.invalid")
    (repo / ".gitattributes").write_text("*.txt filter=f diff=d merge=m\n")
    for branch, text in (("main", "one"), ("side", "two"), ("other", "three")):
        if branch != "main":
            plain(place, "checkout", "-q", "-b", branch, "main")
        (repo / "a.txt").write_text(f"{text}\n")
        plain(place, "add", ".")
        plain(place, "commit", "-q", "-m", text)
    plain(place, "checkout", "-q", "main")
    return root


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Place:
    root = Path(shutil.copytree(template, tmp_path / "place"))
    place = Place(root, root / "repo", root / "canary", root / "mark")
    place.canary.write_text(f"#!/bin/sh\n: > {place.mark}\n")
    place.canary.chmod(0o755)
    return place


class Trap(NamedTuple):
    """A way to make git execute the canary: a preparation, the words that set it off, environment, input."""

    set_up: Callable[[Place], object]
    words: tuple[str, ...]
    env: Callable[[Place], dict[str, str]] = lambda _: {}
    text: str = ""


def keys(*pairs: tuple[str, str]) -> Callable[[Place], object]:
    """Sets configuration keys; CANARY stands for the programme."""
    return lambda place: [
        plain(place, "config", key, value.replace("CANARY", str(place.canary))) for key, value in pairs
    ]


def hook(name: str) -> Callable[[Place], object]:
    return lambda place: shutil.copy(place.canary, place.git_dir / "hooks" / name)


def edited(set_up: Callable[[Place], object]) -> Callable[[Place], object]:
    def both(place: Place) -> None:
        (place.repo / "a.txt").write_text("edited\n")
        set_up(place)

    return both


def hooks_elsewhere(place: Place) -> None:
    (place.root / "h").mkdir()
    shutil.copy(place.canary, place.root / "h/post-index-change")
    plain(place, "config", "core.hooksPath", str(place.root / "h"))


def included(place: Place) -> None:
    (place.root / "extra").write_text(f'[filter "f"]\n\tsmudge = {place.canary}\n')
    plain(place, "config", "include.path", str(place.root / "extra"))


def included_on_branch(place: Place) -> None:
    (place.root / "extra").write_text(f'[filter "f"]\n\tsmudge = {place.canary}\n')
    plain(place, "config", "includeIf.onbranch:main.path", str(place.root / "extra"))


def per_worktree(place: Place) -> None:
    plain(place, "config", "extensions.worktreeConfig", "true")
    plain(place, "config", "--worktree", "filter.f.smudge", str(place.canary))


def with_alternates(place: Place) -> None:
    shutil.copytree(place.git_dir, place.root / "alternate.git")
    (place.git_dir / "objects/info/alternates").write_text(f"{place.root}/alternate.git/objects\n")
    keys(("core.alternateRefsCommand", "CANARY"))(place)


def in_home(place: Place) -> None:
    (place.root / ".gitconfig").write_text(f'[filter "f"]\n\tsmudge = {place.canary}\n')


def nothing(_: Place) -> None:
    pass


CHECKOUT = ("checkout-index", "-f", "-a")
FETCH = ("ls-remote", "ssh://host.invalid/x")

TRAPS: dict[str, Trap] = {
    "hook-post-checkout": Trap(hook("post-checkout"), ("checkout", "-q", "side")),
    "hook-reference-transaction": Trap(hook("reference-transaction"), ("update-ref", "refs/heads/x", "HEAD")),
    "hook-post-index-change": Trap(hook("post-index-change"), ("read-tree", "side")),
    "hooks-path": Trap(hooks_elsewhere, ("read-tree", "side")),
    "fsmonitor": Trap(keys(("core.fsmonitor", "CANARY")), ("status",)),
    "smudge": Trap(keys(("filter.f.smudge", "CANARY")), CHECKOUT),
    "clean": Trap(edited(keys(("filter.f.clean", "CANARY"))), ("add", "a.txt")),
    "process": Trap(keys(("filter.f.process", "CANARY")), CHECKOUT),
    "required": Trap(keys(("filter.f.smudge", "CANARY"), ("filter.f.required", "true")), CHECKOUT),
    "textconv": Trap(edited(keys(("diff.d.textconv", "CANARY"))), ("diff",)),
    "textconv-of-blob": Trap(keys(("diff.d.textconv", "CANARY")), ("cat-file", "--textconv", "HEAD:a.txt")),
    "diff-command": Trap(edited(keys(("diff.d.command", "CANARY"))), ("diff",)),
    "diff-external": Trap(edited(keys(("diff.external", "CANARY"))), ("diff",)),
    "merge-driver": Trap(keys(("merge.m.driver", "CANARY")), ("merge-tree", "--write-tree", "side", "other")),
    "alias": Trap(keys(("alias.canary", "!CANARY")), ("canary",)),
    "include": Trap(included, CHECKOUT),
    "include-on-branch": Trap(included_on_branch, CHECKOUT),
    "worktree-config": Trap(per_worktree, CHECKOUT),
    "credential": Trap(
        keys(("credential.helper", "CANARY")), ("credential", "fill"), text="protocol=https\nhost=host.invalid\n\n"
    ),
    "credential-of-url": Trap(
        keys(("credential.https://host.invalid.helper", "CANARY")),
        ("credential", "fill"),
        text="protocol=https\nhost=host.invalid\n\n",
    ),
    "ssh": Trap(keys(("core.sshCommand", "CANARY")), FETCH),
    "git-proxy": Trap(keys(("core.gitProxy", "CANARY")), ("ls-remote", "git://host.invalid/x")),
    "ext-protocol": Trap(
        lambda place: keys(("protocol.ext.allow", "always"), ("remote.x.url", "ext::CANARY"))(place), ("ls-remote", "x")
    ),
    "upload-pack": Trap(keys(("remote.x.url", "."), ("remote.x.uploadpack", "CANARY")), ("ls-remote", "x")),
    "editor": Trap(keys(("core.editor", "CANARY")), ("tag", "-a", "t")),
    "gpg": Trap(
        keys(("gpg.program", "CANARY"), ("commit.gpgSign", "true")), ("commit", "-q", "--allow-empty", "-m", "x")
    ),
    "gpg-ssh": Trap(
        keys(
            ("gpg.format", "ssh"),
            ("gpg.ssh.program", "CANARY"),
            ("user.signingKey", "key::ssh-ed25519 x"),
            ("tag.gpgSign", "true"),
        ),
        ("tag", "-m", "x", "t"),
    ),
    "trailer": Trap(
        keys(("trailer.x.command", "CANARY"), ("trailer.x.ifMissing", "add")),
        ("interpret-trailers",),
        text="a\n\nb: c\n",
    ),
    "archive": Trap(keys(("tar.x.command", "CANARY")), ("archive", "--format=x", "HEAD")),
    "alternate-refs": Trap(with_alternates, ("rev-list", "--alternate-refs")),
    "home": Trap(in_home, CHECKOUT),
    "env-external-diff": Trap(edited(nothing), ("diff",), env=lambda place: {"GIT_EXTERNAL_DIFF": str(place.canary)}),
    "env-ssh": Trap(nothing, FETCH, env=lambda place: {"GIT_SSH_COMMAND": str(place.canary)}),
    "env-editor": Trap(nothing, ("tag", "-a", "t"), env=lambda place: {"GIT_EDITOR": str(place.canary)}),
    "env-config": Trap(
        nothing,
        ("status",),
        env=lambda place: {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "core.fsmonitor",
            "GIT_CONFIG_VALUE_0": str(place.canary),
        },
    ),
    "env-path": Trap(
        lambda place: shutil.copy(place.canary, place.root / "git"),
        ("status",),
        env=lambda place: {"PATH": f"{place.root}:{SYSTEM_PATH}"},
    ),
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_the_canary_stays_alive(trap: Trap, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain git executes what was planted; the hardened one does not, whether the command then works or fails."""
    trap.set_up(place)
    env = trap.env(place)
    before = shutil.copytree(place.root, place.root.parent / "before")
    plain(place, *trap.words, env=env, text=trap.text)
    assert place.mark.exists(), "the trap itself does not work"
    shutil.rmtree(place.root)
    before.rename(place.root)

    monkeypatch.setenv("HOME", str(place.root))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    git = Git(place.git_dir, own_tree=str(place.repo))
    with suppress(GitFailed):
        git.run(*trap.words, input=trap.text.encode(), environment={"GIT_COMMITTER_NAME": "T"})
    assert not place.mark.exists()


def test_attributes_still_hold_where_they_execute_nothing(place: Place) -> None:
    """Line endings are converted as the repository says: only programmes are taken away."""
    (place.repo / ".gitattributes").write_text("*.txt filter=f text eol=crlf\n")
    plain(place, "add", ".gitattributes")
    keys(("filter.f.smudge", "CANARY"))(place)
    (place.repo / "a.txt").unlink()
    Git(place.git_dir, own_tree=str(place.repo)).run("checkout-index", "-f", "-a")
    assert (place.repo / "a.txt").read_bytes() == b"one\r\n"


def test_a_filter_runs_when_it_was_asked_for(place: Place) -> None:
    """A filter named by the caller does its work; another one does not."""
    keys(("filter.f.smudge", "CANARY"))(place)
    Git(place.git_dir, own_tree=str(place.repo), filters=("other",)).run(*CHECKOUT)
    assert not place.mark.exists()
    Git(place.git_dir, own_tree=str(place.repo), filters=("f",)).run(*CHECKOUT)
    assert place.mark.exists()


def test_a_merge_driver_is_replaced_by_the_ordinary_merge(place: Place) -> None:
    """A driver that would say "no conflict" hides none: the merge conflicts as without it."""
    keys(("merge.m.driver", "true"))(place)
    words = ("merge-tree", "--write-tree", "--name-only", "side", "other")
    assert plain(place, *words).returncode == 0
    git = Git(place.git_dir, own_tree=str(place.repo))
    ended = git.run(*words, ok=(0, 1))
    assert ended.status == 1
    blob = git.text("cat-file", "blob", f"{ended.out.split()[0].decode()}:a.txt")
    assert blob.splitlines() == ["<<<<<<< ours", "two", "=======", "three", ">>>>>>> theirs"]


def test_a_key_that_appears_later_is_neutral_too(place: Place) -> None:
    """Configuration that changed after the first command is looked at again."""
    git = Git(place.git_dir, own_tree=str(place.repo))
    git.run(*CHECKOUT)
    keys(("filter.f.smudge", "CANARY"))(place)
    git.run(*CHECKOUT)
    assert not place.mark.exists()


def test_a_pager_is_not_started(place: Place) -> None:
    """On a terminal, where plain git pages, the hardened one writes through."""
    keys(("core.pager", "CANARY"), ("pager.log", "CANARY"))(place)
    for hardened in (False, True):
        leader, follower = os.openpty()
        if hardened:
            process = Git(place.git_dir).start("log", stdout=follower)
        else:
            process = subprocess.Popen(
                ["git", "log"], cwd=place.repo, stdout=follower, env={"PATH": SYSTEM_PATH, "TERM": "dumb"}
            )
        os.close(follower)
        process.wait(60)
        os.close(leader)
        assert place.mark.exists() is not hardened
        place.mark.unlink(missing_ok=True)
