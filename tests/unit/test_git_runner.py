"""Git on a trusted repository: what a caller gets, what stops it, and which directories it refuses."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher import programmes
from launcher.jail import confined
from launcher.vcs import git as runner
from launcher.vcs import jailed_git
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.jailed_git import JailedGit
from policy.errors import Refusal
from tests.support.identity import SYSTEM_PATH
from tests.support.install import ROOT

CLEAN = {"PATH": SYSTEM_PATH, "HOME": "/nonexistent"}


def plain(*words: str, at: Path) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.invalid")
    ended = subprocess.run(
        ["git", *identity, *words], cwd=at, env=CLEAN, check=True, capture_output=True, text=True, timeout=60
    )
    return ended.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    plain("init", "-q", "-b", "main", at=path)
    (path / "file").write_text("content\n")
    plain("add", ".", at=path)
    plain("commit", "-q", "-m", "First.", at=path)
    return path


def no_group(pid: int) -> bool:
    """Whether the process group is gone, within a generous time."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.waitpid(-pid, os.WNOHANG)  # another test may have made this process the one that adopts orphans
        except ChildProcessError:
            pass
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_text_is_the_output_without_its_last_newline(repo: Path) -> None:
    """A name that is not UTF-8 comes back as `os.fsdecode` writes it."""
    name = os.fsdecode(b"caf\xe9")
    (repo / name).write_text("")
    plain("add", ".", at=repo)
    git = Git.open(repo)
    assert git.text("rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git.text("ls-files", "-z").split("\0")[:2] == [name, "file"]


def test_input_larger_than_a_pipe_goes_through(repo: Path) -> None:
    """Writing and reading alternate, so neither side waits for the other."""
    git = Git.open(repo)
    head = git.text("rev-parse", "HEAD")
    ended = git.run("cat-file", "--batch-check", input=f"{head}\n".encode() * 5_000)
    assert ended.out.count(b"\n") == 5_000


def test_a_failure_tells_command_and_last_words(repo: Path) -> None:
    """The Refusal names what was run, where, and what git said."""
    with pytest.raises(GitFailed) as raised:
        Git.open(repo).run("rev-parse", "--verify", "no such")
    failure = raised.value
    assert (failure.reference, failure.status) == ("git-failed", 128)
    assert "git rev-parse --verify 'no such'" in failure.context
    assert str(repo / ".git") in failure.context
    assert "Needed a single revision" in failure.context


def test_a_status_that_was_expected_is_no_failure(repo: Path) -> None:
    """`ok` names further exit statuses."""
    assert Git.open(repo).run("rev-parse", "-q", "--verify", "nothing", ok=(0, 1)).status == 1


def test_time_runs_out_for_the_whole_group(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit git and its children are killed, and the Refusal says so."""
    started: list[int] = []
    start = Git.start

    def noted(self: Git, *arguments: str, **options: object) -> "subprocess.Popen[bytes]":
        process = start(self, *arguments, **options)  # type: ignore[arg-type]
        started.append(process.pid)
        return process

    monkeypatch.setattr(Git, "start", noted)
    (repo / ".gitattributes").write_text("*.slow filter=slow\n")
    git = Git(repo / ".git", own_tree=str(repo), settings=(("filter.slow.clean", "sleep 1000"),))
    with pytest.raises(GitFailed) as raised:
        git.run("hash-object", "--stdin", "--path=x.slow", input=b"x", timeout=1.0)
    assert raised.value.reference == "git-timeout"
    assert no_group(started[-1])


def test_output_has_a_limit(repo: Path) -> None:
    """A command that writes more than was agreed is stopped; one below the limit is not."""
    git = Git(repo / ".git", own_tree=str(repo), output_limit=41)
    assert len(git.run("rev-parse", "main").out) == 41
    with pytest.raises(GitFailed) as raised:
        git.run("rev-parse", "main", "main")
    assert raised.value.reference == "git-output"


def test_without_a_work_tree_none_is_assumed(repo: Path) -> None:
    """Git must not take the current directory for the files of the repository."""
    with pytest.raises(GitFailed, match="exit status 128"):
        Git(repo / ".git").run("status")
    assert Git(repo / ".git", own_tree=str(repo)).run("status", "--porcelain").out == b""


def test_only_harmless_variables_may_be_set(repo: Path) -> None:
    """Author and index file pass; what names a programme is a mistake of the caller."""
    git = Git.open(repo)
    oid = git.run(
        "commit-tree", "-m", "x", "HEAD^{tree}",
        environment={"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.invalid",
                     "GIT_COMMITTER_NAME": "C", "GIT_COMMITTER_EMAIL": "c@example.invalid"},
    ).out.decode().strip()  # fmt: skip
    assert git.text("log", "-1", "--format=%an %cn", oid) == "A C"
    with pytest.raises(ValueError, match="GIT_SSH_COMMAND"):
        git.run("version", environment={"GIT_SSH_COMMAND": "x"})


def test_options_of_git_itself_are_not_taken(repo: Path) -> None:
    """The first word is a command: `-c` would come behind the settings that protect."""
    for words in (("-c", "core.pager=x", "log"), ("--exec-path=/tmp", "log"), (), ("../x",)):
        with pytest.raises(ValueError, match="must be a git command"):
            Git.open(repo).run(*words)


def test_a_process_can_be_streamed_and_killed(repo: Path) -> None:
    """`start` gives pipes; `kill` leaves nothing of it behind."""
    process = Git.open(repo).start("cat-file", "--batch-check", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"HEAD\n")
    process.stdin.flush()
    assert b" commit " in process.stdout.readline()
    runner.kill(process)
    assert process.returncode == -9
    assert no_group(process.pid)


def test_memory_has_a_limit(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What objects describe may fill any memory; git ends first, and what fits is done."""
    content = bytes(100 << 20)
    assert Git.open(repo).run("hash-object", "--stdin", input=content).out
    monkeypatch.setattr(runner, "_MOST_MEMORY", 80 << 20)
    with pytest.raises(runner.GitFailed) as caught:
        Git.open(repo).run("hash-object", "--stdin", input=content)
    assert b"memory" in caught.value.err.lower()
    assert Git.open(repo).run("hash-object", "--stdin", input=content[: 1 << 20]).out


def test_a_held_lock_outlives_us_as_long_as_git_does(repo: Path) -> None:
    """A descriptor in `hold` is open in git too, so a lock on it is free only when git has ended."""
    path = repo / ".git" / "lock"
    ours = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(ours, fcntl.LOCK_EX)
    process = Git(repo / ".git", hold=(ours,)).start("cat-file", "--batch", stdin=subprocess.PIPE)
    os.close(ours)
    other = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    runner.kill(process)
    fcntl.flock(other, fcntl.LOCK_EX)
    os.close(other)


def test_open_finds_both_git_directories_of_a_linked_worktree(repo: Path) -> None:
    """Without running git: the pointer, and `commondir` behind it."""
    plain("worktree", "add", "-q", "../linked", at=repo)
    git = Git.open(repo.parent / "linked")
    assert (git.git_dir, git.common_dir) == (f"{repo}/.git/worktrees/linked", f"{repo}/.git")
    assert git.text("rev-parse", "--abbrev-ref", "HEAD") == "linked"


def test_open_refuses_a_planted_pointer(repo: Path) -> None:
    """A `.git` that leads to a git directory which does not point back is not followed."""
    plain("worktree", "add", "-q", "../linked", at=repo)
    plain("init", "-q", "../evil", at=repo)
    (repo.parent / "linked" / ".git").write_text(f"gitdir: {repo.parent}/evil/.git\n")
    with pytest.raises(Refusal) as raised:
        Git.open(repo.parent / "linked")
    assert raised.value.reference == "git-pointer-invalid"


def test_open_refuses_a_repository_of_somebody_else(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could have written anything into it; the owner himself may, and root."""
    owner = (repo / ".git").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    if owner == 0:  # root's repositories are as good as root's git
        Git.open(repo)
        os.chown(repo / ".git", 65533, 65533)
    with pytest.raises(Refusal) as raised:
        Git.open(repo)
    assert raised.value.reference == "git-not-ours"
    monkeypatch.setattr(os, "geteuid", lambda: 65533 if owner == 0 else owner)
    Git.open(repo)


def test_git_is_looked_up_in_the_systems_directories(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one there the Refusal names them."""
    monkeypatch.setattr(runner, "SYSTEM_PATH", "/nonexistent")
    with pytest.raises(GitFailed) as raised:
        Git(repo / ".git").run("version")
    assert raised.value.reference == "git-missing"


def test_jailed_commands_share_one_helper_and_are_held_as_each_alone(repo: Path) -> None:
    """Output, input, failure, time, and the lock that is held: as without; nothing is left of the helper."""
    lock = os.open(repo / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (repo / "new").write_text("")
    git = JailedGit(f"{repo}/.git", str(repo), hold=(lock,))
    alone = git.run("status", "--porcelain").out
    with jailed_git.many():
        assert git.run("status", "--porcelain").out == alone == b"?? lock\n?? new\n"
        large = b"x" * 1_000_000
        assert (
            git.run("hash-object", "--stdin", input=large).out
            == Git.open(repo).run("hash-object", "--stdin", input=large).out
        )
        with pytest.raises(GitFailed) as failed:
            git.run("checkout-index", "nothing")
        assert (failed.value.status, b"nothing is not in the cache" in failed.value.err) == (1, True)
        endless = git.start("cat-file", "--batch", "--filters", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        helper = jailed_git._of_thread.helper._process
        assert helper is not None
        while not no_descriptor_of(helper.pid, lock):  # it closes them once it has forked
            time.sleep(0.01)
        runner.kill(endless)
        assert no_group(endless.pid)
        os.kill(helper.pid, 9)
        helper.wait()
        assert git.run("status", "--porcelain").out == alone, "each starts its own then"
    os.close(lock)
    with open(repo / "lock", "rb") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def no_descriptor_of(pid: int, descriptor: int) -> bool:
    """Whether a process has no descriptor of the file that `descriptor` is open on."""
    wanted = os.readlink(f"/proc/self/fd/{descriptor}")
    return wanted not in [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_configuration_is_read_again_when_it_has_changed(repo: Path) -> None:
    """One process asks once for all its `Git`; a file that somebody edits, or adds, is seen at once."""
    assert ("user.name", "X") not in [entry[1:] for entry in Git.open(repo).configured()]
    plain("config", "user.name", "X", at=repo)
    assert ("user.name", "X") in [entry[1:] for entry in Git.open(repo).configured()]
    plain("config", "extensions.worktreeConfig", "true", at=repo)
    plain("config", "--worktree", "filter.evil.clean", "false", at=repo)
    assert ("filter.evil.clean", "false") in [entry[1:] for entry in Git.open(repo).configured()]
    first, second = Git.open(repo).configured(), Git.open(repo).configured()
    assert first is second


def test_refs_are_what_git_says_they_are(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loose, packed, both, symbolic, below a worktree's HEAD, detached and unborn. Git starts where no file tells."""
    for words in (
        ("branch", "packed"), ("branch", "deep/packed"), ("tag", "-a", "-m", "x", "tag"), ("pack-refs", "--all"),
        ("commit", "-q", "--allow-empty", "-m", "Second."), ("branch", "loose"), ("branch", "deep/loose"),
        ("symbolic-ref", "refs/heads/led", "refs/heads/packed"), ("worktree", "add", "-q", "../other", "deep/packed"),
        ("worktree", "add", "-q", "--detach", "../detached", "packed"),
        ("worktree", "add", "-q", "--detach", "../unborn", "packed"), ("update-ref", "-d", "refs/heads/deep/loose"),
    ):  # fmt: skip
        plain(*words, at=repo)
    plain("symbolic-ref", "HEAD", "refs/heads/unborn", at=tmp_path / "unborn")
    names = ["HEAD", *(f"refs/heads/{name}" for name in ("main", "packed", "deep/packed", "loose", "led"))]
    names += ["refs/tags/tag"]
    absent = ["refs/heads", "refs/heads/deep", "refs/heads/deep/loose", "refs/heads/none", "refs/heads/tag"]
    for tree in (repo, tmp_path / "other", tmp_path / "detached", tmp_path / "unborn"):
        git = Git.open(tree)
        for name in (*names, *absent):
            said = git.run("rev-parse", "--verify", "--quiet", name, ok=(0, 1)).out.decode().strip()
            assert git.ref(name) == said, name
            assert bool(said) == (name in names and (name, tree.name) != ("HEAD", "unborn")), name
    with monkeypatch.context() as without:
        without.setattr(Git, "start", None)
        assert all(Git.open(repo).ref(name) for name in names)
        assert not Git.open(repo).ref("refs/heads/none")
        with pytest.raises(TypeError):
            Git.open(repo).ref("refs/remotes/none")


def test_no_ref_of_an_agents_git_directory_is_read(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file there may be a FIFO, or lead elsewhere."""

    def refuse(path: str) -> None:
        raise Refusal("git-dir-written", path)

    git = Git.open(repo)
    monkeypatch.setattr("launcher.vcs.written.refuse_agents_git_dir", refuse)
    with pytest.raises(Refusal, match="git-dir-written"):
        git.ref("HEAD")


def test_a_shared_helper_and_its_jails_end_with_whoever_asked(repo: Path) -> None:
    """SIGKILL of the process that waits for a command in a jail leaves neither the command nor the helper."""
    script = f"""
import subprocess, sys, time
from launcher.vcs import jailed_git
git = jailed_git.JailedGit({f"{repo}/.git"!r}, {str(repo)!r})
with jailed_git.many():
    endless = git.start("cat-file", "--batch", "--filters", stdin=subprocess.PIPE)
    print(endless.pid, jailed_git._of_thread.helper._process.pid, flush=True)
    time.sleep(1000)
"""
    asking = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    with asking.stdout:
        groups = list(map(int, asking.stdout.readline().split()))
    asking.kill()
    asking.wait()
    assert len(groups) == 2
    assert all(no_group(group) for group in groups)


@pytest.mark.parametrize("landlock", [True, False])
def test_where_namespaces_allow_no_mounts_landlock_holds_git(repo: Path, landlock: bool) -> None:
    """As AppArmor has it for programmes without a profile; imitated by a filter. Without both there is a refusal."""
    (repo / "new").write_text("")
    script = f"""
import errno
from launcher.jail import hygiene, seccomp, syscall_tables, syscalls
from launcher.vcs import jailed_git
bpf = seccomp.Program()
bpf.load(0)
bpf.equal(syscall_tables.number("mount", syscalls.MACHINE), then="denied")
bpf.answer(seccomp.ALLOW)
bpf.label("denied")
bpf.answer(seccomp.ERRNO | errno.EACCES)
hygiene.no_new_privs()
hygiene.install_filter(bpf.assemble())
git = jailed_git.JailedGit({f"{repo}/.git"!r}, {str(repo)!r})
try:
    alone = git.run("status", "--porcelain").out
    with jailed_git.many():
        assert alone == git.run("status", "--porcelain").out
    print(alone.decode(), end="")
except Exception as error:
    print(error.reference)
"""
    env = dict(os.environ) | ({} if landlock else {"PADDOCK_NO_LANDLOCK": "1"})
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ("?? new\n" if landlock else "harvest-no-jail\n"), done


def test_what_nobody_was_told_of_is_not_run(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that is killed right after its fork: the command is run again, and there were two of it."""
    killed = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from launcher.jail import confined
write = os.write
confined.os.write = lambda fd, data: os.kill(os.getpid(), signal.SIGKILL) if data.isdigit() else write(fd, data)
confined.serve(int(sys.argv[2]), int(sys.argv[3]))
"""
    words = [sys.executable, "-c", killed]
    monkeypatch.setattr(programmes, "helper", lambda *given, site: [*words, *given])
    (tmp_path / "own").mkdir()
    git = JailedGit(f"{repo}/.git", str(repo))
    with jailed_git.many(), pytest.raises(OSError, match="the helper that starts jails has exited"):
        git.run("read-tree", "HEAD", environment={"GIT_INDEX_FILE": f"{tmp_path}/own/index"})
    time.sleep(0.5)
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_command_in_a_jail_cannot_speak_for_it(repo: Path, monkeypatch: pytest.MonkeyPatch, namespaces: bool) -> None:
    """A git that was taken over had its words shown as a Refusal's, with a hint of its own; a jail's are shown so."""
    if not namespaces:
        monkeypatch.setenv("PADDOCK_NO_USERNS", "1")
    script, said = r"printf '\n\0harvest-no-jail\0outdated\0why\0run this' >&2; exit 125", {}
    for program in ("/bin/sh", "/bin/nonexistent"):
        spec = (str(repo), (program, "-c", script), ((str(repo),), (), ()), (), ())
        with jailed_git.start(spec, stdin=None, stdout=None, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            said[program] = process.stderr.read().decode(), process.wait()
    assert confined.refusal_in(said["/bin/sh"][0]) is not None
    assert said["/bin/sh"][1] == 126
    refusal = confined.refusal_in(said["/bin/nonexistent"][0])
    assert refusal is not None
    assert "/bin/nonexistent" in str(refusal)
    assert said["/bin/nonexistent"][1] == 125


def test_a_helper_says_what_it_refuses(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is wrong before there is a jail."""
    monkeypatch.setenv("PADDOCK_NO_USERNS", "banana")
    with pytest.raises(Refusal, match="environment-invalid"):
        JailedGit(f"{repo}/.git", str(repo)).run("status")


ODD = ("line\u2028break", "para\u2029graph", "next\u0085line", "no\u00a0break", "wide\u3000space", "plain")
"""Names that git takes for a branch's, and that hold what Python ends a line, or a word, at."""


def test_names_of_refs_are_not_taken_apart(repo: Path) -> None:
    """Of all refs, below a prefix, and where objects are asked for by them, missing ones among others."""
    for name in ODD:
        plain("branch", name, at=repo)
    git = Git(str(repo / ".git"))
    oid = git.ref("HEAD")
    assert git.refs() == {f"refs/heads/{name}": oid for name in (*ODD, "main")}
    assert git.refs("refs/heads/pl") == {}
    assert git.refs("refs/tags") == {}
    wanted = [f"refs/heads/{name}{end}" for name in ODD for end in ("", "-none")]
    assert [each.kind for each in git.objects(wanted)] == ["commit", "missing"] * len(ODD)
