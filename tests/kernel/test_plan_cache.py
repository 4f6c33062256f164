"""A cached plan is used exactly as long as making it again would give the same, and nobody else can put one there."""

import marshal
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.jail import syscalls
from launcher.session import cache, inputs, planning, running
from launcher.session.trust_store import Trust
from launcher.vcs import written
from policy import promises
from policy.errors import Refusal
from tests.support import identity
from tests.support.derived import Bench

SECRET = "hunter2-correct-horse"


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def git(*words: str, at: Path) -> None:
    subprocess.run(["git", "-c", "protocol.file.allow=always", *words], cwd=at, check=True, capture_output=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a submodule; each test works on a copy."""
    place = tmp_path_factory.mktemp("plan-cache")
    for name in ("upstream", "repo"):
        (place / name).mkdir()
        git("init", "-q", "-b", "main", at=place / name)
        git("config", "user.name", "Tester", at=place / name)
        git("config", "user.email", "tester@example.invalid", at=place / name)
        git("commit", "-q", "--allow-empty", "-m", "First.", at=place / name)
    git("submodule", "--quiet", "add", "../upstream", "library", at=place / "repo")
    git("commit", "-q", "-m", "Library.", at=place / "repo")
    return place / "repo"


def _vouch(bench: Bench, git_dir: Path) -> None:
    written.vouch(bench.where.state, str(git_dir), syscalls.identity(str(git_dir)))


def _trusted(bench: Bench) -> None:
    git("init", "-q", "library/x", at=bench.root)
    _vouch(bench, Path(bench.root, "library/x/.git"))


@pytest.fixture
def bench(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    place = Path(os.path.realpath(tmp_path))
    shutil.copytree(template, place / "repo", symlinks=True)
    bench = Bench(place)
    for name in [name for name in os.environ if name not in (identity.MARKER,)]:
        monkeypatch.delenv(name)
    bench.first.mkdir()
    program(bench.second / "tool")
    home = place / "home"
    go = home / ".local/go"
    program(go / "bin/go")
    program(go / "bin/gofmt")
    (home / ".config/paddock").mkdir(parents=True)
    (home / "data").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{bench.first}:{bench.second}:{go}/bin:/usr/bin:/bin")
    return bench


NAMED = ("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},nested")

Change = Callable[[Bench, pytest.MonkeyPatch], object]


def user_config(bench: Bench, text: str = "") -> Path:
    path = Path(bench.where.config, "config.toml")
    path.write_text("schema = 1\n" + text)
    path.chmod(0o600)
    return path


def project_config(bench: Bench, text: str = "") -> Path:
    path = bench.root / ".paddock.toml"
    path.write_text("schema = 1\n" + text)
    return path


def same_size_same_time(path: Path, text: str) -> None:
    """Other content with the old size and modification time, in place: only the change time tells."""
    old = path.stat()
    assert len(text) == old.st_size
    path.write_text(text)
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


def replace_worktree(bench: Bench) -> None:
    other = bench.place / "other"
    shutil.copytree(bench.root, other, symlinks=True)
    bench.root.rename(bench.place / "gone")
    other.rename(bench.root)


def second_submodule(bench: Bench) -> None:
    (bench.root / "nested").mkdir()
    shutil.copytree(bench.root / ".git/modules/library", bench.root / ".git/modules/nested", symlinks=True)
    config = bench.root / ".git/modules/nested/config"
    config.write_text(config.read_text().replace("/library", "/nested"))
    (bench.root / "nested/.git").write_text("gitdir: ../.git/modules/nested\n")


def trusting(bench: Bench) -> None:
    store = Trust(bench.where.state)
    store.trust(str(bench.root / ".paddock.toml"), (bench.root / ".paddock.toml").read_bytes())


def provider_file(bench: Bench) -> Path:
    path = Path(bench.where.config, "providers/own.toml")
    path.parent.mkdir(exist_ok=True)
    source = Path(planning.__file__).parents[2] / "policy/providers/builtin/goose.toml"
    path.write_text(source.read_text().replace('name = "goose"', 'name = "own"', 1))
    return path


def steps(*acts: Callable[[], object]) -> None:
    """One after the other."""
    for act in acts:
        act()


CHANGES: dict[str, Change] = {
    "the user's configuration is made": lambda b, m: user_config(b),
    "a project's configuration is made": lambda b, m: project_config(b),
    "trust is recorded": lambda b, m: Trust(b.where.state).trust("/somewhere", b"content"),
    "a git directory is trusted": lambda b, m: _trusted(b),
    "a git directory is trusted no more": lambda b, m: steps(
        lambda: _trusted(b), b.plan, lambda: written.revoke(b.where.state, f"{b.root}/library/x/.git")
    ),
    ".gitmodules is edited": lambda b, m: (b.root / ".gitmodules").write_text("# other\n"),
    ".gitmodules is removed": lambda b, m: (b.root / ".gitmodules").unlink(),
    "a submodule comes": lambda b, m: second_submodule(b),
    "a submodule goes": lambda b, m: shutil.rmtree(b.root / ".git/modules/library"),
    "a submodule is deinitialised": lambda b, m: git("submodule", "deinit", "-f", "library", at=b.root),
    "an index names another submodule": lambda b, m: git(*NAMED, at=b.root),
    "a submodule's directory goes": lambda b, m: shutil.rmtree(b.root / "library"),
    "a submodule's directory becomes a link": lambda b, m: steps(
        lambda: (b.root / "library").rename(b.place / "moved"),
        lambda: (b.root / "library").symlink_to(b.place / "moved"),
    ),
    "a submodule's configuration says another place": lambda b, m: git(
        "config", "core.worktree", "../../../elsewhere", at=b.root / ".git/modules/library"
    ),
    "git borrows other objects": lambda b, m: (b.root / ".git/objects/info/alternates").write_text(f"{b.place}/home\n"),
    "PATH loses an entry": lambda b, m: m.setenv("PATH", f"{b.second}:/usr/bin:/bin"),
    "PATH is unset": lambda b, m: m.delenv("PATH"),
    "HOME is another": lambda b, m: m.setenv("HOME", str(b.place / "other-home")),
    "a programme comes earlier in PATH": lambda b, m: program(b.first / "tool"),
    "a dangling link comes earlier in PATH and leads somewhere later": lambda b, m: (b.first / "tool").symlink_to(
        program(b.place / "elsewhere")
    ),
    "the programme goes": lambda b, m: (b.second / "tool").unlink(),
    "the programme is replaced": lambda b, m: (program(b.second / "new").rename(b.second / "tool"),),
    "the programme cannot be executed any more": lambda b, m: (b.second / "tool").chmod(0o644),
    "a directory of PATH becomes a link": lambda b, m: steps(
        lambda: b.second.rename(b.place / "moved"),
        lambda: b.second.symlink_to(b.place / "moved"),
    ),
    "a directory of PATH can be written by all": lambda b, m: b.second.chmod(0o777),
    "a toolchain goes": lambda b, m: shutil.rmtree(b.place / "home/.local/go"),
    "a toolchain's variable is set": lambda b, m: m.setenv("VIRTUAL_ENV", str(b.place / "home/data")),
    "the worktree is replaced by another": lambda b, m: replace_worktree(b),
    "the worktree's git directory goes": lambda b, m: (b.root / ".git").rename(b.place / "gone"),
    "a worktree is made around": lambda b, m: (b.root / ".git").rename(b.place / ".git"),
    "the private home goes": lambda b, m: shutil.rmtree(Path(b.where.state, "worktrees")),
    "a hand-off file comes": lambda b, m: (b.root / ".envrc").touch(),
    "a hand-off file that a pattern names comes": lambda b, m: (b.root / "x.code-workspace").touch(),
    "user namespaces are switched off": lambda b, m: m.setenv("PADDOCK_NO_USERNS", "1"),
    "Landlock is pinned": lambda b, m: m.setenv("PADDOCK_LANDLOCK_ABI", "6"),
    "Landlock is switched off": lambda b, m: m.setenv("PADDOCK_NO_LANDLOCK", "1"),
    "configuration moves": lambda b, m: m.setenv("XDG_CONFIG_HOME", str(b.place / "xdg-config")),
    "state moves": lambda b, m: m.setenv("XDG_STATE_HOME", str(b.place / "xdg-state")),
}
"""What happens between two launches, each of which has to be noticed."""


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_an_input_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """An unchanged launch finds its plan; after the change it finds none, until it is made again."""
    bench.plan()
    found = bench.cached()
    assert found is not None
    CHANGES[what](bench, monkeypatch)
    assert bench.cached() is None


def test_an_index_that_names_the_same_submodules_is_no_change(bench: Bench) -> None:
    """Agents commit with each session, so a plan outlives that; not what is put where a submodule was to come."""
    git(*NAMED, at=bench.root)
    place = bench.root / "nested"
    place.mkdir()
    bench.plan()
    (bench.root / "more").touch()
    git("add", "more", at=bench.root)
    found = bench.cached()
    assert found is not None
    assert (str(place), promises.UNPOPULATED) in found.plan.read_only
    git("init", "-q", at=place)
    assert bench.cached() is None
    plan = bench.plan().plan
    assert str(place) not in dict(plan.read_only)
    assert f"{place}/.git" in dict(plan.read_only)


def test_trust_that_comes_between_a_plan_and_its_session_refuses_it(bench: Bench) -> None:
    """What is trusted could be written by it; it leaves nothing, and trust elsewhere is none of its concern."""
    entry = bench.plan()
    git("init", "-q", "elsewhere", at=bench.place)
    _vouch(bench, bench.place / "elsewhere/.git")
    written.refuse_late(bench.where.state, entry.plan)
    git("init", "-q", "new", at=bench.root)
    _vouch(bench, Path(bench.root, "new/.git"))
    with pytest.raises(Refusal) as caught:
        running.run(entry, (), bench.where, given={}, name=None, report=None, verbose=False)
    assert caught.value.reference == "trust-changed"
    assert os.listdir(f"{bench.where.state}/sessions") == []
    written.refuse_late(bench.where.state, bench.plan().plan)
    assert f"{bench.root}/new/.git" in written.vouched(bench.where.state)


def test_a_plan_holds_for_the_directories_on_record(bench: Bench) -> None:
    """Neither for a tree that is made anew at its place, nor when a trusted repository was moved, maybe into it."""
    bench.plan()
    assert bench.cached() is not None
    old = shutil.copytree(bench.root, f"{bench.place}/old", symlinks=True)
    shutil.rmtree(bench.root)
    os.rename(old, bench.root)
    os.utime(bench.root)
    assert bench.cached() is None
    git("init", "-q", "apart", at=bench.place)
    _vouch(bench, bench.place / "apart/.git")
    bench.plan()
    assert bench.cached() is not None
    (bench.place / "apart/.git").rename(f"{bench.root}/library/x")
    git("init", "-q", "apart", at=bench.place)
    assert bench.cached() is None
    assert f"{bench.root}/library/x" in dict(bench.plan().plan.read_only)
    assert bench.cached() is not None


def _edited(path: Path) -> None:
    path.write_text(path.read_text() + "# edited\n")


FILES: dict[str, tuple[Callable[[Bench], Path], dict[str, Callable[[Path], object]]]] = {
    name: (
        make,
        {
            "edited": _edited,
            "removed": Path.unlink,
            "edited in place with its old size and time": lambda path: same_size_same_time(
                path, path.read_text().replace("#1", "#2")
            ),
        },
    )
    for name, make in {
        "user": lambda bench: user_config(bench, "#1\n"),
        "project": lambda bench: project_config(bench, "#1\n"),
        "--config": lambda bench: _extra(bench),
    }.items()
}


def _extra(bench: Bench) -> Path:
    path = bench.place / "extra.toml"
    path.write_text("schema = 1\n#1\n")
    bench.options = {"--config": str(path)}
    return path


@pytest.mark.parametrize("how", ["edited", "removed", "edited in place with its old size and time"])
@pytest.mark.parametrize("which", FILES)
def test_a_change_of_configuration_is_noticed(bench: Bench, which: str, how: str) -> None:
    """Each file of configuration counts, whichever way it changes."""
    make, ways = FILES[which]
    path = make(bench)
    bench.plan()
    assert bench.cached() is not None
    ways[how](path)
    assert bench.cached() is None


def test_trust_of_the_projects_file_is_noticed(bench: Bench) -> None:
    """A file that was refused is taken after `paddock trust`, and refused again once trust is taken back."""
    project_config(bench, f'[filesystem]\nread = ["{bench.place}/home/data"]\n')
    with pytest.raises(Refusal, match="trust"):
        bench.plan()
    trusting(bench)
    entry = bench.plan()
    assert str(bench.place / "home/data") in [path for path, _, _ in entry.plan.grants]
    assert bench.cached() is not None
    Trust(bench.where.state).forget(str(bench.root / ".paddock.toml"))
    assert bench.cached() is None


@pytest.mark.parametrize("option", ["--ro", "--rw", "--deny"])
def test_a_path_named_on_the_command_line_is_an_input(bench: Bench, option: str) -> None:
    """When what it names is replaced by a link, its plan is made again."""
    data = bench.place / "home/data"
    bench.options = {option: [str(data)]}
    bench.plan()
    assert bench.cached() is not None
    data.rename(bench.place / "moved")
    data.symlink_to(bench.place / "moved")
    assert bench.cached() is None


def test_a_denied_path_that_appears_is_noticed(bench: Bench) -> None:
    """`--deny` of something missing only warns; once it is there, the plan denies it."""
    late = bench.root / "late"
    bench.options = {"--deny": [str(late)]}
    assert any("late" in warning for warning in bench.plan().plan.warnings)
    late.mkdir()
    assert bench.cached() is None
    assert str(late) in [path for path, _ in bench.plan().plan.denied]


def test_a_providers_file_is_an_input(bench: Bench) -> None:
    """Editing or adding a provider's file changes the flags that agents get, so a new plan is made."""
    path = provider_file(bench)
    bench.options = {"--provider": "own"}
    bench.plan()
    assert bench.cached() is not None
    _edited(path)
    assert bench.cached() is None
    bench.plan()
    assert bench.cached() is not None
    (path.parent / "another.toml").write_text(path.read_text().replace('name = "own"', 'name = "another"', 1))
    assert bench.cached() is None


def test_the_first_providers_file_is_noticed(bench: Bench) -> None:
    """A provider's file that overrides a built-in one counts from the moment it is there."""
    bench.options = {"--provider": "goose"}
    bench.plan()
    assert bench.cached() is not None
    path = provider_file(bench)
    path.write_text("override = true\n" + path.read_text().replace('name = "own"', 'name = "goose"', 1))
    assert bench.cached() is None


def test_paddocks_own_code_and_data_are_inputs(bench: Bench) -> None:
    """Every module of the two packages that took part, and each file of their data, is recorded with its content."""
    bench.plan()
    body = bench.entry.read_bytes()[len(cache._MAGIC) + 8 :]
    recorded = {subject for kind, subject, _ in marshal.loads(body)[1] if kind == inputs.CONTENT}
    package = Path(planning.__file__).parents[2]
    data = (package / "policy/default.toml", package / "policy/toolchains.toml")
    for path in (
        *data,
        package / "policy/derive.py",
        package / "launcher/session/cache.py",
        package / "policy/plan.py",
    ):
        assert str(path) in recorded


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"--freeze-root": True}),
        ({"--ro": ["/usr/share"]}, {"--rw": ["/usr/share"]}),
        ({"--ro": ["/usr", "/opt"]}, {"--ro": ["/usr"]}),
        ({"--env": ["A"]}, {"--env": ["A=1"]}),
        ({"--env": ["A", "B"]}, {"--env": ["A"]}),
        ({"--net": "none"}, {"--net": "open"}),
        ({"--worktree": "."}, {}),
    ],
)
def test_other_options_are_another_launch(
    bench: Bench, one: dict[str, str | list[str] | bool], other: dict[str, str | list[str] | bool]
) -> None:
    """Two command lines that may decide differently have different keys."""
    bench.options = one
    first = bench.key()
    bench.options = other
    assert bench.key() != first


def test_the_key_holds_who_asks(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """User, group, supplementary groups, directory and PATH: shells that differ there take nothing from each other."""
    keys = {bench.key()}
    for name, value in (("geteuid", 12), ("getegid", 12), ("getgroups", [12])):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, lambda value=value: value)
            keys.add(bench.key())
    keys.add(cache.key(("tool",), "/elsewhere"))
    with monkeypatch.context() as patch:
        patch.setitem(os.environ, "PATH", "/elsewhere")
        keys.add(bench.key())
    assert len(keys) == 6


def test_the_commands_arguments_do_not_matter(bench: Bench) -> None:
    """`make a` and `make b` share a plan: arguments are put in at launch."""
    bench.plan()
    bench.command = ["tool", "another"]
    assert bench.cached() is not None


def test_values_and_arguments_never_reach_the_disk(bench: Bench) -> None:
    """Neither `--env NAME=VALUE` nor the command's arguments are found in any file below the cache directory."""
    bench.options = {"--env": [f"TOKEN={SECRET}", "PASSED"]}
    bench.command = ["tool", SECRET, f"--password={SECRET}"]
    os.environ["PASSED"] = SECRET
    bench.plan()
    assert bench.cached() is not None
    files = [path for path in Path(bench.where.cache).rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert SECRET.encode() not in path.read_bytes()
        assert b"TOKEN" in path.read_bytes()


@pytest.mark.parametrize(
    ("end", "reference"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "plan-not-made"),
        (lambda: None.nothing, "internal-error"),  # type: ignore[attr-defined]
        (lambda: open("/proc/nothing"), "launch-failed"),  # noqa: SIM115
    ],
)
def test_a_planning_process_that_ends_early_is_a_refusal(end: Callable[[], cache.Entry], reference: str) -> None:
    """Nothing is started without a Plan, however the process ended that was to make it."""
    with pytest.raises(Refusal) as refused:
        cache._in_child(end)
    assert refused.value.reference == reference


def test_a_refusal_of_the_planning_process_is_the_launchs(bench: Bench) -> None:
    """All that a Refusal says comes across, undecodable names too."""
    first = Refusal("grant-missing", "no \udcff here", context="a\nb", hint="look", exit_code=127)

    def refuse() -> cache.Entry:
        raise first

    with pytest.raises(Refusal) as refused:
        cache._in_child(refuse)
    assert vars(refused.value) == vars(first)
    assert cache._in_child(bench.plan).plan.to_data() == bench.plan().plan.to_data()
