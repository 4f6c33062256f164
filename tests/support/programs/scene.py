"""The outside of an attack: a worktree, things beyond it worth reaching, the launch, and the judgement."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policy import promises
from tests.support.identity import Who, Word
from tests.support.install import Installed, base_python
from tests.support.programs.harness import ATTACK, TWIN, Given
from tests.support.repository import Repo

SWITCHES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    promises.NAMESPACES: ({}, ()),
    promises.GUARD: ({"PADDOCK_NO_USERNS": "1"}, ()),
    promises.BUBBLEWRAP: ({}, ("--backend", "bubblewrap")),
}
"""What selects a backend: environment variables and options. A further backend is one line more."""

SECRET = "the-secret-of-the-outside"
PROGRAMS = Path(__file__).parent
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.support.programs import harness; harness.main()"


class Answers(list[dict[str, Any]]):
    """What became of each attempt: name, kind, claims, state (done, denied, broken, hung), detail, value."""

    def named(self, kind: str, *states: str) -> dict[str, str]:
        """name -> detail (and value) of the attempts of a kind in one of these states."""
        return {
            answer["name"]: f"{answer['state']} {answer['detail']} {answer['value'][:300]}".strip()
            for answer in self
            if answer["kind"] == kind and answer["state"] in states
        }

    def value(self, name: str) -> str:
        """What one attempt returned; it must have been done."""
        (found,) = [answer for answer in self if answer["name"] == name]
        assert found["state"] == "done", found
        return str(found["value"])


@dataclass
class Scene:
    """One worktree, one backend, one identity.

    Attributes:
        who: owns everything and starts the jail.
        installed: the command under test.
        repo: the repository; the jail holds its linked worktree ``one``.
        backend: of `policy.promises`.
        place: directory of `who` outside the worktree.
        files: added to the facts that every programme is given.
    """

    who: Who
    installed: Installed
    repo: Repo
    backend: str
    place: Path
    files: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Puts the programmes into the worktree."""
        target = self.area / "suite/tests/support/programs"
        target.mkdir(parents=True)
        for source in PROGRAMS.glob("*.py"):
            shutil.copy(source, target)
        self.own(self.area)

    @classmethod
    def make(cls, who: Who, installed: Installed, repo: Repo, backend: str, public_dir: Path) -> "Scene":
        """A scene whose `place` is a new directory below `public_dir`."""
        place = public_dir / "beyond"
        place.mkdir()
        return cls(who, installed, repo, backend, who.give(place))

    @property
    def area(self) -> Path:
        """A directory in the worktree."""
        return self.repo.one / "area"

    def own(self, path: Path) -> Path:
        """Gives `path` and what is below it to the identity."""
        return self.who.give(path)

    def command(self, argv: Sequence[Word], *options: Word) -> list[str]:
        """The words that run `argv` in the jail."""
        return [
            str(self.installed.paddock),
            "run",
            *SWITCHES[self.backend][1],
            *map(str, options),
            "--",
            *map(str, argv),
        ]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The launcher's whole environment."""
        return self.who.environment(SWITCHES[self.backend][0] | dict(extra or {}))

    def start(self, argv: Sequence[Word], *options: Word, **popen: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401
        """Starts `argv` in the jail; keywords are those of `subprocess.Popen`."""
        environment = self.environment(popen.pop("env", None))
        words = self.who.command(self.command(argv, *options))
        return subprocess.Popen(words, cwd=popen.pop("cwd", self.area), env=environment, **popen)

    def run(
        self,
        argv: Sequence[Word],
        *options: Word,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120,
        pass_fds: Sequence[int] = (),
        process_group: int | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `argv` in the jail to its end; keywords are those of `subprocess.run`."""
        return subprocess.run(
            self.who.command(self.command(argv, *options)),
            cwd=cwd or self.area,
            env=self.environment(env),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
            pass_fds=pass_fds,
            process_group=process_group,
        )

    def words(self, programme: str, given: Given, name: str = "given") -> list[str]:
        """The command that runs a programme of attacks, with its facts written down."""
        file = self.area / f"{name}-{programme}.json"
        file.write_text(json.dumps(self.facts() | given | {"programme": programme}, default=str))
        self.own(file)
        return [str(base_python()), "-I", "-S", "-c", _START, f"{self.area}/suite", str(file)]

    def facts(self) -> Given:
        """What every programme is told."""
        return {
            "area": str(self.area),
            "worktree": str(self.repo.one),
            "main": str(self.repo.main),
            "two": str(self.repo.two),
            "home": str(self.who.home),
            "backend": self.backend,
            **self.files,
        }

    def tried(self, programme: str, given: Given, *options: Word, **more: Any) -> Answers:  # noqa: ANN401
        """Runs a programme of attacks in the jail and returns its answers; the backend must be the wanted one."""
        report = self.place / f"report-{len(list(self.place.glob('report-*')))}.json"
        ended = self.run(self.words(programme, given), "--report", report, *options, **more)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        assert json.loads(report.read_text())["backend"] == self.backend
        return Answers(json.loads(ended.stdout))

    def judge(self, row: str, answers: Answers, *, seen: Iterable[str] = (), closed_anyway: Iterable[str] = ()) -> None:
        """Compares what happened with the table of promises.

        Args:
            row: id in the table.
            answers: of the programme.
            seen: names of attacks whose effect was found outside.
            closed_anyway: names (also without ``@place``) of attacks denied although the backend does not hold the row.
        """
        faulty = answers.named(ATTACK, "broken", "hung") | answers.named(TWIN, "broken", "hung", "denied")
        assert not faulty, "\n".join(f"{name}: {detail}" for name, detail in faulty.items())
        assert answers.named(TWIN, "done"), "no twin"
        claimed = {a["name"] for a in answers if a["kind"] == ATTACK and a["claims"] and a["state"] == "done"}
        through = claimed | set(seen)
        state, reason = promises.verdict(row, self.backend)
        if state == promises.HELD:
            found = answers.named(ATTACK, "done")
            assert not through, "got through:\n" + "\n".join(
                f"{n}: {found.get(n, 'seen outside')}" for n in sorted(through)
            )
        else:
            assert through, f"the table says that {self.backend} does not hold {row} ({reason}); nothing got through"
            closed = set(closed_anyway)
            assert not {name for name in through if name in closed or name.partition("@")[0] in closed}


def furnish(directory: Path, names: Iterable[str], token: str) -> Path:
    """Makes what placed acts expect, for each name a directory: a script, files, a link, an entry."""
    for name in names:
        here = directory / name
        (here / "directory").mkdir(parents=True)
        (here / "empty").mkdir()
        (here / "file").write_text(token)
        (here / "directory/inner").write_text(token)
        (here / f"entry-{token}").touch()
        (here / "script").write_text(f"#!/bin/sh\necho {token}\n")
        (here / "script").chmod(0o755)
        (here / "link").symlink_to("file")
        os.setxattr(here / "file", "user.present", b"x")
    return directory


def snapshot(directory: Path, *, metadata: bool = False) -> dict[str, tuple[object, ...]]:
    """Every path below with its kind, identity and content; with `metadata` also mode, owner, times, attributes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        info = path.lstat()
        content: object = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        facts: tuple[object, ...] = (info.st_ino, info.st_mode >> 12, info.st_size if path.is_file() else 0, content)
        if metadata:
            attributes = tuple(
                (n, os.getxattr(path, n, follow_symlinks=False)) for n in os.listxattr(path, follow_symlinks=False)
            )
            facts += (info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, info.st_ctime_ns, attributes)
        else:
            facts += (info.st_nlink,)
        found[str(path.relative_to(directory))] = facts
    return found


def changed(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> set[str]:
    """First components of the paths that differ: for furnished directories, the names of the acts."""
    return {path.partition("/")[0] for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - {
        "."
    }


@dataclass
class Trees:
    """Furnished directories for a programme's placed acts, and what happened to them.

    Attributes:
        attack: label -> directory in which every act must fail.
        twin: label -> directory in which every act must succeed.
    """

    attack: dict[str, Path]
    twin: dict[str, Path]
    metadata: bool = False
    _before: dict[str, dict[str, tuple[object, ...]]] = field(default_factory=dict)

    def prepare(self, scene: Scene, names: Iterable[str]) -> Given:
        """Makes the directories and remembers them; returns the places for the programme."""
        names = list(names)
        for places, token in ((self.attack, SECRET), (self.twin, "allowed")):
            for path in places.values():
                scene.own(furnish(path, names, token))
        for label, path in self.attack.items():
            self._before[label] = snapshot(path, metadata=self.metadata)
        return {ATTACK: {k: str(v) for k, v in self.attack.items()}, TWIN: {k: str(v) for k, v in self.twin.items()}}

    def seen(self) -> set[str]:
        """``act@place`` of the acts that left a mark where they should not."""
        return {
            f"{name}@{label}"
            for label, path in self.attack.items()
            for name in changed(self._before[label], snapshot(path, metadata=self.metadata))
        }


def leaked(answers: Answers, token: str = SECRET) -> set[str]:
    """Names of the attempts that brought the secret out."""
    return {answer["name"] for answer in answers if token in answer["value"]}


@dataclass(frozen=True)
class Bystander:
    """A process outside, of the same user: sleeps, and records what reaches it."""

    process: "subprocess.Popen[str]"
    directory: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def facts(self) -> dict[str, object]:
        """What others could change: the last line of its account."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.poll() is None, "the bystander was killed"
        self.process.stdin.write("tell\n")
        self.process.stdin.flush()
        facts: dict[str, object] = json.loads(self.process.stdout.readline())
        return facts


def bystander(stack: ExitStack, who: Who, place: Path, name: str, **popen: Any) -> Bystander:  # noqa: ANN401
    """Starts a bystander, which ends with the stack.

    Args:
        stack: owns it.
        who: its user.
        place: where it works; holds `file`, which it keeps open.
        name: a word in its command line.
        popen: further keywords of `subprocess.Popen`.
    """
    program = place / "bystander.py"
    shutil.copy(PROGRAMS / "bystander.py", program)
    process = subprocess.Popen(
        who.command([base_python(), "-I", "-S", program, name]),
        cwd=place,
        env=who.environment({"BYSTANDER": SECRET}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **popen,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return Bystander(process, place)
