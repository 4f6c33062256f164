"""Whatever happens to the disk or the environment: a plan that still counts as valid is the plan that would be made.

The mutations know nothing of the decisions. They take what the plan's making asked about, everything above it and names
beside it, and rename, replace, edit, relabel or link it.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from launcher.session import inputs, machine, places, planning
from policy.errors import Refusal
from tests.conftest import IDENTITIES
from tests.support import forked
from tests.support.identity import Who

ALL: dict[str, str | list[str] | bool] = {
    "--ro": ["home/data"], "--rw": ["home/other"], "--deny": ["home/data/inner", "work/late", "work/secret"],
    "--submodule": ["one"], "--freeze-root": True, "--provider": "own",
}  # fmt: skip
PATH = "linked:bin:home/go/bin:home/.local/bin"
VARIABLES = {
    "HOME": ("home", "home/other", None),
    "PATH": (PATH, "bin:linked", "linked", None),
    "XDG_CONFIG_HOME": ("home/other", "relative", None),
    "XDG_STATE_HOME": ("home/other", None),
    "VIRTUAL_ENV": ("work/venv", "home/data", None),
    "GOROOT": ("home/go", "home/data", None),
    "PADDOCK_NO_USERNS": ("1", None),
    "PADDOCK_LANDLOCK_ABI": ("6", "7", None),
}
EXAMPLES = int(os.environ.get("PADDOCK_EXAMPLES", "14"))
OWN_DIRECTORIES = ("state-not-ours", "state-unusable")
NEW_NAMES = ("tool", "late", ".envrc", ".gitmodules", "HEAD", "x.code-workspace", "z.toml", ".git", "commondir")

GIT_CONFIG = "[core]\n\tworktree = {}\n"


def git_directory(path: Path, config: str = "") -> None:
    for name in ("objects/info", "refs"):
        (path / name).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text(config)


def program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def plant(place: Path) -> None:
    """A linked worktree with two submodules and much of what decisions look at, anew; about 60 files."""
    for entry in place.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    work, home, main = place / "work", place / "home", place / "main"
    for directory in (work / "secret", work / ".vscode", home / "data/inner", home / "other", place / "bin"):
        directory.mkdir(parents=True)
    common = main / ".git"
    git_directory(common)
    own = common / "worktrees/work"
    own.mkdir(parents=True)
    for name, text in (("HEAD", "ref: refs/heads/w\n"), ("commondir", "../..\n"), ("gitdir", f"{work}/.git\n")):
        (own / name).write_text(text)
    (work / ".git").write_text(f"gitdir: {own}\n")
    (common / "objects/info/alternates").write_text(f"{home}/data\n")
    modules = ""
    for name in ("one", "two"):
        git_directory(own / "modules" / name, GIT_CONFIG.format(work / name))
        (work / name).mkdir()
        (work / name / ".git").write_text(f"gitdir: {own}/modules/{name}\n")
        modules += f'[submodule "{name}"]\n\tpath = {name}\n'
    git_directory(work / "old/.git")
    (work / ".gitmodules").write_text(modules + '[submodule "old"]\n\tpath = old\n')
    for name in (".vscode/tasks.json", "Makefile", "secret/file"):
        (work / name).write_text("{}\n")
    program(place / "bin/tool")
    program(place / "bin/own")
    program(home / "scripts/deep/run", f"#!{place}/bin/tool\n")
    (place / "linked").symlink_to("bin-dir")
    (place / "bin-dir").symlink_to("home/.local/bin")
    program(home / ".local/bin/extra")
    (home / ".local/bin/run").symlink_to("../../scripts/deep/run")
    for name in ("go", "gofmt"):
        program(home / "go/bin" / name)
    program(work / "venv/bin/python")
    (work / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    config = home / ".config/paddock"
    (config / "providers").mkdir(parents=True)
    (config / "config.toml").write_text("schema = 1\n")
    builtin = Path(planning.__file__).parents[2] / "policy/providers/builtin/goose.toml"
    (config / "providers/own.toml").write_text(builtin.read_text().replace('name = "goose"', 'name = "own"', 1))
    for path in (config, config / "config.toml"):
        path.chmod(path.stat().st_mode & ~0o022)


def absolute(place: Path, text: str | None) -> str | None:
    return None if text is None else ":".join(f"{place}/{part}" for part in text.split(":"))


def set_environment(place: Path) -> None:
    os.environ.clear()
    os.environ.update({"HOME": f"{place}/home", "PATH": f"{absolute(place, PATH)}:/usr/bin:/bin"})


def opened(directory: Path) -> None:
    """Gives the modes back that removing the tree needs."""
    directory.chmod(0o755)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            opened(entry)


def planned(place: Path, options: dict[str, str | list[str] | bool]) -> planning.Planned:
    where = places.places(os.environ)
    full: dict[str, str | list[str] | bool] = {"--worktree": f"{place}/work"}
    for name, value in options.items():
        paths = name in ("--ro", "--rw", "--deny") and isinstance(value, list)
        full[name] = [f"{place}/{item}" for item in value] if paths and isinstance(value, list) else value
    command = "own" if "--provider" in options else "tool"
    return planning.make(full, [command, "argument"], str(place), where)


def outcome(place: Path, options: dict[str, str | list[str] | bool]) -> object:
    """The Plan and the context for tools, or the reference of the Refusal."""
    try:
        found = planned(place, options)
    except Refusal as refusal:
        return refusal.reference
    return found.plan.to_data(), found.boundaries, found.seeds


def same_times(path: Path, act: Callable[[], object]) -> None:
    """Acts and puts the modification time back, so that only the change time can tell."""
    before = path.stat()
    act()
    if path.exists():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(path: Path, other: Path) -> None:
    between = path.with_name("between")
    path.rename(between)
    other.rename(path)
    between.rename(other)


def turned_into_link(path: Path) -> None:
    """The thing moves aside and a link to it takes its place: what is behind stays the very same."""
    aside = path.with_name(path.name + "-aside")
    path.rename(aside)
    path.symlink_to(aside.name)


def copied_over(path: Path) -> None:
    """A copy takes the place of the original."""
    copy = path.with_name(path.name + "-copy")
    shutil.copytree(path, copy, symlinks=True) if path.is_dir() else shutil.copy2(path, copy)
    path.rename(path.with_name(path.name + "-original"))
    copy.rename(path)


def edited(path: Path) -> None:
    """Other bytes, same length, same modification time, same inode."""
    text = path.read_bytes()
    same_times(path, lambda: path.write_bytes(text.replace(b"o", b"0").replace(b"w", b"W").replace(b"1", b"2")))


MUTATIONS: dict[str, Callable[[Path, Path, int, str], object]] = {
    "chmod": lambda path, other, number, name: path.chmod(
        (0o000, 0o444, 0o555, 0o644, 0o666, 0o700, 0o777)[number % 7]
    ),
    "remove": lambda path, other, number, name: (
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    ),
    "rename": lambda path, other, number, name: path.rename(path.with_name(name)),
    "swap": lambda path, other, number, name: swap(path, other),
    "turn into a link": lambda path, other, number, name: turned_into_link(path),
    "copy over": lambda path, other, number, name: copied_over(path),
    "edit": lambda path, other, number, name: edited(path),
    "append": lambda path, other, number, name: path.write_bytes(path.read_bytes() + b"# x\n"),
    "empty": lambda path, other, number, name: path.write_bytes(b""),
    "new file": lambda path, other, number, name: program(path / name),
    "new directory": lambda path, other, number, name: (path / name).mkdir(),
    "new link": lambda path, other, number, name: (path / name).symlink_to(other),
    "make the absent": lambda path, other, number, name: path.mkdir() if number % 2 else program(path),
    "link the absent": lambda path, other, number, name: path.symlink_to(other),
    "hard link the absent": lambda path, other, number, name: path.hardlink_to(other),
    "special": lambda path, other, number, name: os.mkfifo(path / name),
    "environment": lambda path, other, number, name: None,
}


def mutate(place: Path, known: list[str], step: tuple[str, int, int, int]) -> str:
    """One change; says what it was. What the operating system refuses is no change."""
    kind, first, second, number = step
    if kind == "environment":
        name = sorted(VARIABLES)[first % len(VARIABLES)]
        value = VARIABLES[name][second % len(VARIABLES[name])]
        plain = name.startswith("PADDOCK") or value == "relative"
        text = value if plain else absolute(place, value)
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text
        return f"{name}={text}"
    path, other = Path(known[first % len(known)]), Path(known[second % len(known)])
    name = NEW_NAMES[number % len(NEW_NAMES)]
    try:
        MUTATIONS[kind](path, other, number, name)
    except OSError as error:
        return f"{kind} {path} failed: {error}"
    return f"{kind} {path} other={other} number={number} name={name}"


def touched(place: Path, recorded: tuple[inputs.Input, ...]) -> list[str]:
    """What was asked about below `place`, and all that is above it, sorted so that examples can be repeated."""
    found = set()
    for kind, subject, _ in recorded:
        subject = subject.partition("\0")[0]  # behind it: names that were looked for
        if kind != inputs.ENVIRONMENT and subject.startswith(f"{place}/"):
            while subject != str(place):
                found.add(subject)
                subject = os.path.dirname(subject)
    return sorted(found)


TICK = 0.01
"""Seconds: longer than the steps in which this kernel's file systems count time."""

STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(MUTATIONS)), *[st.integers(min_value=0, max_value=9999)] * 3),
    min_size=1,
    max_size=3,
)


def explore(place: Path, options: dict[str, str | list[str] | bool], examples: int) -> tuple[int, int]:
    """Counts (still valid, made again); AssertionError for a plan that is stale and counts as valid."""
    counts = [0, 0]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),  # shrinking takes minutes, and an example is three steps at most
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=STEPS)
    def compare(steps: list[tuple[str, int, int, int]]) -> None:
        plant(place)
        set_environment(place)
        before = planned(place, options)
        old = (before.plan.to_data(), before.boundaries, before.seeds)
        recorded = before.machine.recorded()
        time.sleep(2 * TICK)  # so that what was planted has settled
        kept = machine.grouped_by_directory(recorded, settled=int(TICK * 1e9))
        assert len(kept) < len(recorded)
        known = touched(place, recorded)
        done = [mutate(place, known, step) for step in steps]
        valid = inputs.unchanged(kept, os.environ)
        assert valid or not inputs.unchanged(recorded, os.environ), f"asked for too much after {done}"
        counts[not valid] += 1
        try:
            if valid:
                now = outcome(place, options)
                if now in OWN_DIRECTORIES:
                    return  # asked anew at every launch, when the session's directories are made
                assert now == old, f"stale after {done}: {difference(old, now)}"
        finally:
            opened(place)

    compare()
    return counts[0], counts[1]


def difference(old: object, now: object) -> str:
    """Only the entries of which the two do not hold the same."""
    if isinstance(old, tuple) and isinstance(now, tuple):
        gone, come = [x for x in old if x not in now], [x for x in now if x not in old]
        if len(gone) == len(come):
            return " / ".join(difference(one, other) for one, other in zip(gone, come, strict=True)) or "the order"
        return f"{gone!r} -> {come!r}"
    return f"{old!r} -> {now!r}"


@pytest.mark.parametrize(
    ("who", "options"),
    [(IDENTITIES[-1], ALL), (IDENTITIES[0], {})],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, dict) else None,
    indirect=["who"],
)
def test_a_valid_plan_is_the_plan_that_would_be_made(
    who: Who, public_dir: Path, options: dict[str, str | list[str] | bool]
) -> None:
    """After any mutation, either an input differs or planning from scratch gives the same Plan, context and seeds.

    Root, whom no mode keeps out, asks about the same things.
    """
    place = public_dir / "fuzz"
    place.mkdir()
    who.give(place)
    valid, again = forked.run(lambda: explore(place, options, EXAMPLES), who)
    # The comparison means something only if both ways out occurred.
    assert valid
    assert again
