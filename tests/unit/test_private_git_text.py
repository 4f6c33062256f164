"""What a private git directory is told by text: records, packed refs, settings without secrets."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.vcs import git_config
from launcher.vcs.private import copied_settings, ref_files
from launcher.vcs.private.record import MOUNTED, Record, Repository

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
A, B, C = "a" * 40, "b" * 40, "c" * 40


@given(TEXT, TEXT, st.one_of(st.none(), TEXT), st.lists(TEXT, max_size=3))
def test_a_record_survives_its_file(worktree: str, name: str, branch: str | None, stores: list[str]) -> None:
    """Whatever paths and names hold, what is read is what was written; anything cut off is nothing."""
    repository = Repository(name, worktree, "/g", "/c", "modules/x", branch, None, "sha1", tuple(stores))
    record = Record(worktree, "linked", MOUNTED, (repository, repository), (("/a", "1:2"), ("/b", "")))
    content = record.encode()
    found = Record.decode(content)
    assert found is not None
    assert (found.worktree, found.repositories, found.seen) == (worktree, record.repositories, record.seen)
    assert repository.stores == found.repositories[0].stores
    for end in (0, 1, len(content) // 2, len(content) - 1):
        assert Record.decode(content[:end]) is None


def test_loose_refs_win_over_packed_ones_and_no_line_is_peeled_then() -> None:
    """The file is sorted; a file that nothing is added to keeps its peeled lines."""
    packed = f"{A} refs/heads/a\n{B} refs/tags/v\n^{C}\n".encode()
    assert ref_files.with_loose(packed, {}).endswith(packed)
    assert ref_files.with_loose(packed, {"refs/remotes/o/HEAD": "ref: refs/remotes/o/a"}).endswith(packed)
    found = ref_files.with_loose(packed, {"refs/heads/a": C, "refs/notes/n": B}).decode().splitlines()
    assert found[1:] == [f"{C} refs/heads/a", f"{B} refs/notes/n", f"{B} refs/tags/v"]
    assert "peeled" not in found[0]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host/x.git?token=secret#secret", "https://host/x.git"),
        ("https://secret@host:8443/x", "https://host:8443/x"),
        ("ssh://git:secret@host/x", "ssh://git@host/x"),
        ("git@host:x/y.git", "git@host:x/y.git"),
        ("/srv/x.git", "/srv/x.git"),
        ("ext::sh -c secret", None),
    ],
)
def test_urls_come_without_credentials(url: str, shown: str | None) -> None:
    """Neither password nor token nor query is left; a user's name only over SSH."""
    assert copied_settings.without_credentials(url) == shown


def test_only_settings_of_behaviour_are_shown() -> None:
    """What holds secrets or leads to programmes is left out; the rest comes out as git reads it."""
    entries = (
        ("user.name", 'Q "x" \\'), ("core.abbrev", "12"), ("http.extraheader", "hush"), ("core.sshcommand", "hush"),
        ("credential.helper", "hush"), ("url.https://hush@x/.insteadof", "x"), ("alias.st", "!hush"),
        ("branch.a.b.remote", "origin"), ("remote.origin.url", "https://hush@h/x"), ("remote.origin.pushurl", "hush"),
        ("filter.lfs.clean", "git-lfs clean -- %f"), ("filter.lfs.required", None), ("diff.x.textconv", "hush"),
    )  # fmt: skip
    text = copied_settings.text(copied_settings.shown(copied_settings.Settings(entries, "/home/u"))).decode()
    assert "hush" not in text
    for line in ('name = "Q \\"x\\" \\\\"', '[branch "a.b"]', 'url = "https://h/x"', "\trequired\n", '[filter "lfs"]'):
        assert line in text


_LINES = (
    "[a]",
    "[A.Sub]",
    '[a "Su b"]',
    '[a "x\\"]y"]',
    "[a] k=v",
    "k = v # c \\",
    'k = " v;"w # x',
    "K-1=a\\",
    "b\\n\\t\\\\",
    "  k",
    "# [b]",
    "k\t= x  y ;z",
    "\ufeff[a]",
    'k="',
    "[a",
    "1=2",
    "k=\\q",
    '[a"b"]',
    "k = é",
    "\r",
    "k=v\r",
)


@given(st.lists(st.sampled_from(_LINES), max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_configuration_is_read_as_git_reads_it(lines: list[str], newline: str, ended: bool) -> None:
    """Whatever a file holds: the same variables, or neither can read it."""
    content = (newline.join(["[first]", *lines]) + newline * ended).encode()
    path = Path("/dev/stdin")
    told = subprocess.run(
        ["git", "config", "-f", path, "--list", "-z"], input=content, capture_output=True, check=False
    )
    found = [(section, sub, name, value) for section, sub, name, value in git_config.entries(content)]
    if told.returncode == 0:
        git = [entry.partition("\n") for entry in told.stdout.decode().split("\0")[:-1]]
        assert [(f"{a}.{b}.{c}" if b else f"{a}.{c}", value.replace("\t", " ")) for a, b, c, value in found] == [
            (key, value.replace("\t", " ") if mark else "true") for key, mark, value in git
        ]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("gitdir:/home/u/jobs/", True), ("gitdir:~/jobs/", True), ("gitdir:jobs/", True), ("gitdir:~/job", False),
        ("gitdir:/home/u/*/x/.git", True), ("gitdir:/home/*/.git", False), ("gitdir:/home/**/.git", True),
        ("gitdir/i:~/JOBS/**", True), ("gitdir:./jobs/x/.git", True), ("gitdir:~/j[n-p]bs/x/.git", True),
        ("gitdir:~/j[!o]bs/", False), ("onbranch:topic/", True), ("onbranch:topic", False), ("onbranch:t*/a", True),
        ("hasconfig:remote.*.url:https://host/**", True), ("hasconfig:remote.*.url:ssh:*", False), ("other:x", False),
    ],
)  # fmt: skip
def test_conditions_of_includes(condition: str, holds: bool) -> None:
    """As git-config(1) has them."""
    assert holds == git_config.condition_holds(
        condition, "/home/u/.gitconfig", git_dir="/home/u/jobs/x/.git", home="/home/u", branch="topic/a",
        urls=["https://host/a/b"],
    )  # fmt: skip
