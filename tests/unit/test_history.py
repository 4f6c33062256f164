"""The history of a trusted repository, read with GitPython: what it says, what it costs, and what it never executes."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import git
import psutil
import pytest

from launcher.vcs import git as runner
from launcher.vcs import history, written
from launcher.vcs.history import TrustedRepo, between
from policy.errors import Refusal
from tests.support.ground import Entry, Ground
from tests.support.identity import SYSTEM_PATH
from tests.support.install import ROOT
from tests.support.repository import repeat

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def make(root: Path) -> None:
    Ground(root / "repo", {"a": "one\n", "b": "two\n"})


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    repeat(make, tmp_path)
    return Ground(tmp_path / "repo", None)


def opened(ground: Ground) -> TrustedRepo:
    return TrustedRepo(str(ground.root / ".git"), state=str(ground.state))


def written_commit(ground: Ground, content: bytes) -> str:
    """A commit object with exactly this content, which git itself would not make."""
    words = ("hash-object", "-t", "commit", "-w", "--stdin", "--literally")
    return ground.run(*words, stdin=content).stdout.decode().strip()


def raw_commit(ground: Ground, *, author: bytes = b"A <a@x> 1700000000 +0100", more: bytes = b"", text: bytes) -> str:
    tree, parent = ground.tree("main").encode(), ground.id("main").encode()
    lines = b"tree %s\nparent %s\nauthor %s\ncommitter C <c@x> 1700000000 +0000\n" % (tree, parent, author)
    return written_commit(ground, lines + more + b"\n" + text)


def test_it_says_what_git_says(tmp_path: Path) -> None:
    """Counts, files and lines of random histories with merges, binary files, modes and odd names are git's own."""
    dice = random.Random(18)
    names = ["plain", "with space", "tab\tname", "line\nbreak", 'quo"te', "back\\slash", "uml\xe4ut", "\u2028", "dir/x",
             os.fsdecode(b"caf\xe9"), "-n", ":100644"]  # fmt: skip
    for number in range(8):
        ground = Ground(tmp_path / f"r{number}", {"plain": "1\n"})
        for step in range(dice.randint(1, 8)):
            branch = dice.choice(["main", "side"])
            parents = [name for name in (branch, "main") if ground.id(f"refs/heads/{name}")][: dice.randint(1, 2)]
            kind = dice.choice(["100644", "100755"])
            contents: list[str | bytes] = [f"{step}\n" * dice.randint(0, 4), b"\0\1\2"]
            tree = {name: Entry(kind, dice.choice(contents))
                    for name in dice.sample(names, dice.randint(1, 4))}  # fmt: skip
            ground.commit(branch, tree, parents=parents)
        first = ground.git("rev-list", "--max-parents=0", "main").split()[0]
        with opened(ground) as repo:
            found = between(repo, first, ground.id("main"))
        listed = ground.git("rev-list", "--no-merges", f"{first}..main").split()
        assert [entry.commit for entry in found.commits] == listed
        assert found.commit_count == len(listed)
        words = ("diff", "--no-renames", "-z", first, "main")
        raw = ground.git(*words, "--name-status").split("\0")[:-1]
        assert [(change.kind, change.path) for change in found.files] == list(zip(raw[::2], raw[1::2], strict=True))
        lines = [line.split("\t", 2) for line in ground.git(*words, "--numstat").split("\0")[:-1]]
        assert [(change.insertions, change.deletions) for change in found.files] == [
            (int(more.replace("-", "0")), int(less.replace("-", "0"))) for more, less, _ in lines
        ]
        assert found.insertions == sum(change.insertions for change in found.files)
        assert found.deletions == sum(change.deletions for change in found.files)
        assert found.file_count == len(raw) // 2


def test_people_read_it_in_few_lines(ground: Ground) -> None:
    """A summary, some commits, some files, and how many there are besides; JSON has them all."""
    for number in range(5):
        ground.commit("side", {f"f{number}": "x\n"}, parents=[] if number else ["main"])
    with opened(ground) as repo:
        found = between(repo, ground.id("main"), ground.id("side"))
        fewer = between(repo, ground.id("main"), ground.id("side"), commits=2, files=3)
    assert found.summary() == "5 commits by Tester, 2001-09-09; 5 files, +5 -0"
    assert found.lines(2) == [
        found.summary(),
        f"  {ground.id('side')[:12]} 2001-09-09 Tester: Work.",
        f"  {ground.id('side~1')[:12]} 2001-09-09 Tester: Work.",
        "  and 3 more",
        "  A f0 +1 -0",
        "  A f1 +1 -0",
        "  and 3 more files",
    ]
    assert len(found.lines(9)) == 11
    assert (len(fewer.commits), fewer.commit_count, len(fewer.files), fewer.file_count) == (2, 5, 3, 5)
    document = json.loads(json.dumps(found.document()))
    assert document["commits"][0] == {
        "commit": ground.id("side"), "subject": "Work.", "author": "Tester", "email": "tester@example.invalid",
        "date": "2001-09-09T01:46:40+00:00",
    }  # fmt: skip
    assert document["files"][4] == {"path": "f4", "kind": "A", "insertions": 1, "deletions": 0}


def test_nothing_is_between_a_commit_and_itself(ground: Ground) -> None:
    """It is an answer, no error."""
    with opened(ground) as repo:
        found = between(repo, ground.id("main"), ground.id("main"))
    assert found.summary() == "0 commits; 0 files, +0 -0"


def test_what_agents_wrote_is_shown_escaped(ground: Ground) -> None:
    """Neither a name nor a subject reaches the terminal as it is, or makes a line of its own."""
    name = "\x1b[2Jevil\nM other +9 -9"
    ground.commit("side", {name: "x\n"}, parents=["main"])
    bad = raw_commit(ground, author=b"\x1b]0;own\x07 \xe2\x80\xae <e\x1b@x> 1700000000 +0000", text=b"\x1b[31mred\rx\n")
    with opened(ground) as repo:
        for tip in (ground.id("side"), bad):
            found = between(repo, ground.id("main"), tip)
            for line in found.lines(10):
                assert line.isprintable()
            assert json.loads(json.dumps(found.document()))["commits"][0]["commit"] == tip
        assert between(repo, ground.id("main"), ground.id("side")).files[0].path == name


def test_a_costly_commit_costs_nothing(ground: Ground) -> None:
    """Of one that is too large only the id is shown; an odd encoding counts as UTF-8."""
    odd = (b"idna", b"rot13", b"undefined", b"../../x", b"\xff", b"")
    for more, text, subject in (
        (b"encoding punycode\n", b"a" * 20_000 + b"-" + b"b" * 20_000, "a" * 200),
        *((b"encoding %s\n" % name, b"a", "a") for name in odd),
        (b"encoding unicode_escape\n", b"\\ud800", "\\ud800"),
        (b"", b"x" * (1 << 20), ""),
        (b"gpgsig x\n" + b" y\n" * 40_000, b"x", ""),
    ):
        tip = raw_commit(ground, more=more, text=text)
        began = time.monotonic()
        with opened(ground) as repo:
            found = between(repo, ground.id("main"), tip)
        assert time.monotonic() - began < 5, more[:30]
        assert found.commits[0][:2] == (tip, subject), more[:30]


@pytest.mark.parametrize("date", [b"9223372036854775807 +0000", b"253402300800 +0000"])
def test_a_commit_with_a_date_that_no_calendar_has_is_shown(ground: Ground, date: bytes) -> None:
    """With its author and subject: whoever sets such a date would be missing in what people read."""
    tip = raw_commit(ground, author=b"Mallory <m@x> " + date, text=b"agent: Work.\n")
    with opened(ground) as repo:
        found = between(repo, ground.id("main"), tip)
    assert found.authors == ("Mallory",)
    assert found.commits[0] == (tip, "agent: Work.", "Mallory", "m@x", "")
    assert found.lines(1)[:2] == [
        "1 commit by Mallory; 0 files, +0 -0", f"  {tip[:12]} (no date) Mallory: agent: Work."
    ]  # fmt: skip


def test_commits_in_other_encodings_are_read(ground: Ground) -> None:
    """What git may write by `i18n.commitEncoding` is decoded."""
    tip = raw_commit(ground, author="J\xf6rg <j@x> 1 +0000".encode("latin-1"), more=b"encoding ISO-8859-1\n",
                     text="\xfcber\n".encode("latin-1"))  # fmt: skip
    with opened(ground) as repo:
        entry = between(repo, ground.id("main"), tip).commits[0]
    assert (entry.author, entry.subject) == ("J\xf6rg", "\xfcber")


def test_crooked_commits_end_in_an_answer_or_a_refusal(ground: Ground) -> None:
    """Random damage to a commit object raises nothing else."""
    dice = random.Random(4)
    good = ground.run("cat-file", "commit", "main").stdout
    parent = b"parent %s\n" % ground.id("main").encode()
    good = good.replace(b"author", parent + b"author", 1)
    tips = []
    for _ in range(60):
        content = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(content))
            what = dice.choice([b"", b"\n", b" ", b"\0", b"\xff", b"9" * 30, b"-1", b"encoding x\n", b"gpgsig "])
            content[at : at + dice.randint(0, 6)] = what
        tips.append(written_commit(ground, bytes(content)))
    answers = 0
    with opened(ground) as repo:
        for tip in tips:
            with suppress(Refusal):
                found = between(repo, ground.id("main"), tip)
                answers += 1
                assert all(line.isprintable() for line in found.lines(5))
    assert answers > 5


def test_what_cannot_be_read_is_refused(ground: Ground, tmp_path: Path) -> None:
    """Missing objects, other objects than commits, names in place of ids, and repositories with SHA-256 ids."""
    main = ground.id("main")
    with opened(ground) as repo:
        for old, new in ((main, "f" * 40), (main, ground.id("main:a")), (main, "main"), ("--all", main), ("", main)):
            with pytest.raises(Refusal, match="history-unreadable"):
                between(repo, old, new)
    other = tmp_path / "long"
    ground.run("init", "-q", "--object-format=sha256", str(other))
    (other / "a").write_text("x")
    ground.run("add", ".", at=other)
    ground.run("commit", "-q", "-m", "x", at=other)
    tip = ground.git("rev-parse", "HEAD", at=other)
    with TrustedRepo(str(other / ".git")) as repo, pytest.raises(Refusal, match="history-unreadable"):
        between(repo, tip, tip)


def test_what_agents_could_write_is_refused(ground: Ground) -> None:
    """A git directory in a tree on record, and the private one of an agent."""
    ground.state.mkdir(mode=0o700)
    private = ground.state / "git/0123456789abcdef/git"
    private.parent.mkdir(parents=True)
    ground.run("clone", "-q", "--bare", str(ground.root), str(private))
    with pytest.raises(Refusal, match="git-dir-written"):
        TrustedRepo(str(private), state=str(ground.state))
    (ground.root.parent / "link").symlink_to(private)
    with pytest.raises(Refusal, match="git-dir-written"):
        TrustedRepo(str(ground.root.parent / "link"), state=str(ground.state))
    record = Path(written.path_of(str(ground.state)))
    record.write_bytes(b"*" + os.fsencode(ground.root) + b"\0")
    record.chmod(0o600)
    with pytest.raises(Refusal, match="git-dir-written"):
        opened(ground)


CLOSED: list[Callable[[TrustedRepo], object]] = [
    lambda repo: repo.index,
    lambda repo: repo.remotes,
    lambda repo: repo.submodules,
    lambda repo: repo.head,
    lambda repo: repo.config_reader(),
    lambda repo: repo.config_writer(),
    lambda repo: repo.is_dirty(),
    lambda repo: repo.untracked_files,
    lambda repo: repo.create_head("x"),
    lambda repo: repo.create_remote("x", "y"),
    lambda repo: repo.clone("/nonexistent/x"),
    lambda repo: repo.archive(open(os.devnull, "wb")),  # noqa: SIM115
    lambda repo: repo.git.fetch("origin"),
    lambda repo: repo.git.push("origin"),
    lambda repo: repo.git.submodule("update", "--init"),
    lambda repo: repo.git.commit("-m", "x"),
    lambda repo: repo.git.config("--list"),
    lambda repo: repo.git.status(),
    lambda repo: repo.git.grep("x"),
    lambda repo: repo.git.log(),
    lambda repo: repo.git.update_ref("refs/heads/x", "main"),
    lambda repo: repo.git(c="core.pager=x").rev_list("main"),
    lambda repo: repo.git.rev_list("main", output="/nonexistent/x"),
    lambda repo: repo.git.diff("main", "main", ext_diff=True),
    lambda repo: repo.git.diff("/etc/hosts", "/etc/passwd", no_index=True),
    lambda repo: repo.git.cat_file("main:a", textconv=True),
    lambda repo: repo.git.cat_file("--filters", "main:a"),
    lambda repo: repo.git.rev_list("main", env={"GIT_DIR": "/x"}),
    lambda repo: repo.git.rev_list("main", shell=True),
    lambda repo: repo.git.rev_list("main", output_stream=sys.stdout),
    lambda repo: repo.git.execute("git version"),
    lambda repo: repo.git.execute(["git", "version"], None, True),
    lambda repo: repo.commit("main").diff(git.NULL_TREE),
    lambda repo: repo.commit("main").diff("HEAD", create_patch=True),
    lambda repo: repo.odb.store(None),
    lambda repo: git.Remote(repo, "origin").fetch(),
]


def test_it_reads_and_does_nothing_else(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would write, run hooks, reach out or take options from elsewhere is refused before any process starts."""
    started: list[object] = []
    start = subprocess.Popen.__init__

    def spied(self: "subprocess.Popen[bytes]", words: list[str], *rest: Any, **options: Any) -> None:  # noqa: ANN401
        started.append([word for word in words if not word.startswith("--")][1])
        start(self, words, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", spied)
    for number, use in enumerate(CLOSED):
        with opened(ground) as repo, pytest.raises(Refusal, match="history-closed"):
            use(repo)
        # The runner's own look for what it must override, and objects.
        assert set(started) <= {"config", "cat-file"}, number


# Everything that plain git would execute on this road. The canary leaves a mark when it runs.
KEYS = ("core.fsmonitor", "core.sshCommand", "core.pager", "pager.diff", "pager.rev-list", "diff.external",
        "diff.d.textconv", "diff.d.command", "filter.f.smudge", "filter.f.clean", "filter.f.process", "core.editor",
        "core.alternateRefsCommand", "gpg.program", "merge.m.driver", "credential.helper")  # fmt: skip
ALIASES = ("diff", "rev-list", "cat-file", "rev-parse", "config", "version")

SCRIPT = """
import os, sys
started = []
def report(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        started.append((event, arguments[0], arguments[1], arguments[3] if event == "subprocess.Popen" else None))
sys.addaudithook(report)
from launcher.vcs.history import TrustedRepo, between
assert [each[1] for each in started] == ["/nonexistent/git"], started  # what importing GitPython tries to run
del started[:]
import git
assert git.Git.GIT_PYTHON_GIT_EXECUTABLE.startswith("/usr"), git.Git.GIT_PYTHON_GIT_EXECUTABLE
assert os.environ["GIT_PYTHON_REFRESH"] == "raise"
with TrustedRepo(sys.argv[1], state=sys.argv[1] + "-state") as repo:
    for line in between(repo, sys.argv[2], sys.argv[3]).lines(9):
        print(line)
for event, program, words, environment in started:
    assert program.startswith("/usr") and words[1] == "--git-dir=" + sys.argv[1], (program, words)
    assert not {"EVIL", "GIT_DIR", "GIT_EXEC_PATH", "LD_PRELOAD", "GIT_TRACE"} & environment.keys()
"""


def test_nothing_that_is_named_anywhere_is_executed(ground: Ground, tmp_path: Path) -> None:
    """Not by configuration, includes, attributes, hooks, aliases, nor by the environment and the PATH of the caller."""
    mark, canary = tmp_path / "mark", tmp_path / "bin/git"
    canary.parent.mkdir()
    canary.write_text(f"#!/bin/sh\necho $0 $@ >> {mark}\n")
    canary.chmod(0o755)
    for name in ("pgrep", "ps", "ssh", "sh", "less"):
        (canary.parent / name).symlink_to("git")
    git_dir = ground.root / ".git"
    attributes = "* diff=d filter=f merge=m\n"
    tip = ground.commit("side", {".gitattributes": attributes, "a": "three\n", "b": b"\0\1"}, parents=["main"])
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info/attributes").write_text(attributes)
    (tmp_path / "more").write_text(f"[diff]\n\texternal = {canary}\n")
    for key in KEYS:
        ground.git("config", key, str(canary))
    for name in ALIASES:
        ground.git("config", f"alias.{name}", f"!{canary}")
    ground.git("config", "include.path", str(tmp_path / "more"))
    for path in (git_dir / "hooks").iterdir():
        path.unlink()
    for name in ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc"):
        (git_dir / "hooks" / name).symlink_to(canary)
    (tmp_path / ".gitconfig").write_text(f"[core]\n\tfsmonitor = {canary}\n[diff]\n\texternal = {canary}\n")
    other = Ground(tmp_path / "other", {"z": "z"})
    environment = {
        "PATH": f"{canary.parent}:{SYSTEM_PATH}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "EVIL": "1",
        "GIT_DIR": str(other.root / ".git"),
        "GIT_COMMON_DIR": str(other.root / ".git"),
        "GIT_OBJECT_DIRECTORY": str(other.root / ".git/objects"),
        "GIT_WORK_TREE": str(other.root),
        "GIT_INDEX_FILE": str(other.root / ".git/index"),
        "GIT_EXEC_PATH": str(canary.parent),
        "GIT_EXTERNAL_DIFF": str(canary),
        "GIT_SSH_COMMAND": str(canary),
        "GIT_PAGER": str(canary),
        "GIT_TRACE": str(tmp_path / "trace"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.external",
        "GIT_CONFIG_VALUE_0": str(canary),
        "GIT_PYTHON_GIT_EXECUTABLE": str(canary),
        "GIT_PYTHON_REFRESH": "raise",
        "GIT_PYTHON_TRACE": "full",
    }
    words = [sys.executable, "-W", "error", "-c", SCRIPT, str(git_dir), ground.id("main"), tip]
    ended = subprocess.run(words, cwd=other.root, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("1 commit by Tester, 2001-09-09; 3 files, +2 -1\n"), ended.stdout
    assert not mark.exists(), mark.read_text()
    assert not (tmp_path / "trace").exists()


def test_many_uses_leave_nothing_behind(ground: Ground) -> None:
    """No process, no descriptor, and not more memory than at the beginning, also when a use ends in a refusal."""
    tip = ground.commit("side", {"a": "three\n"}, parents=["main"])
    me = psutil.Process()
    before, others, size = 0, set[int](), 0
    for number in range(100):
        with opened(ground) as repo:
            if number % 25 == 0:
                assert between(repo, ground.id("main"), tip).commit_count == 1
            else:
                assert repo.commit(tip).summary == "Work."
            if number % 40 == 0:
                with pytest.raises(Refusal):
                    between(repo, ground.id("main"), "e" * 40)
        if number == 20:
            before, others, size = me.num_fds(), {child.pid for child in me.children()}, me.memory_info().rss
    assert me.num_fds() <= before
    assert {child.pid for child in me.children()} <= others
    assert me.memory_info().rss - size < 32 << 20


def test_it_is_closed_when_nobody_holds_it(ground: Ground) -> None:
    """A repository that was not closed leaves no process either, once it is forgotten."""
    me = psutil.Process()
    before = {child.pid for child in me.children()}
    repo = opened(ground)
    assert repo.commit("main").summary == "Work."
    assert {child.pid for child in me.children()} - before
    del repo
    assert not {child.pid for child in me.children()} - before


def test_no_verb_loads_it_before_it_is_needed() -> None:
    """GitPython costs 60 ms."""
    names = sorted(path.stem for path in (ROOT / "launcher/verbs").glob("[a-z]*.py"))
    code = f"import sys\nfor name in {names}: __import__('launcher.verbs.' + name)\nassert 'git' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_a_slow_or_endless_command_is_stopped(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's limits of time and output hold."""
    monkeypatch.setattr(history, "_OUTPUT_LIMIT", 100)
    for number in range(9):
        ground.commit("side", {f"f{number}": "x\n"}, parents=[] if number else ["main"])
    with opened(ground) as repo, pytest.raises(runner.GitFailed, match="git-output"):
        between(repo, ground.id("main"), ground.id("side"))
