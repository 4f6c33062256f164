"""A round: the catalogue in one sandbox, or in none, each trial judged by what can be seen from outside."""

import functools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from launcher import programmes
from launcher.selftest.catalogue import ATTACK, Trial
from launcher.selftest.ground import PRIZES, Ground
from launcher.selftest.witnesses import Bystander, Listeners, SystemV, Terminal, survivors
from policy import promises
from policy.errors import Refusal
from policy.pasted import joined
from policy.plan import SYSTEM_PATH

PLACES = (
    *PRIZES, "the repository's configuration", "another process's words", "another process's environment",
    "a variable", "a listener", "the API key", "memory of System V", "a message of System V",
)  # fmt: skip
"""Where secrets lie."""

VARIABLES = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DATABASE_URL", "SSH_ASKPASS_SECRET")
NAME = "paddock-selftest-"
"""How names begin of what has to lie in /tmp and shared memory; the self-test's own directory's name follows."""
_START, _END, _LATE = 30, 30, 2.0
"""Seconds in which a sandbox has to be there, to have ended, and in which what it left has to go."""

_NEXT, _PLAINLY = 40, 4
"""Seconds for what a user does next, by Paddock's verbs, which read everything twice, and by others."""

_PRELUDE = f"""
paddock() {{ {joined(programmes.paddock())} "$@"; }}
ours() {{
    paddock worktree status job; paddock merge job
}}
plainly() {{
    git -C "$TREE" status; git -C "$TREE" diff; git -C "$TREE" add -A; git -C "$TREE" commit -m more
    git merge -m merged agent/job; git status; :
}}
"""
"""What a user does with an agent's work: by Paddock's verbs, and with git alone."""

_MOST = 100_000
"""Characters of what that prints."""

_OUTSIDE = ("home", "out", "project", "temp", "shared")
"""What no merge and no session's end changes."""


class Sandbox(NamedTuple):
    """What holds a command, and how it is started.

    Attributes:
        name: for people.
        words: in front of the command; ``{tree}`` and ``{home}`` stand for directories.
        paddock: whether it is Paddock, which also gets the options of a trial.
        environment: on top of the launcher's.
    """

    name: str
    words: tuple[str, ...] = ()
    paddock: bool = False
    environment: tuple[tuple[str, str], ...] = ()


class Outcome(NamedTuple):
    """What a trial came to: the effects of an attack, or of a control that works, and what it printed."""

    effects: tuple[str, ...]
    output: str
    seconds: float


class Round:
    """The catalogue in one sandbox.

    Args:
        base: a directory for it.
        sandbox: which.
        progress: is told the name of each trial.
    """

    def __init__(self, base: Path, sandbox: Sandbox, progress: Callable[[str], None]) -> None:
        self._base, self._sandbox, self._progress = base, sandbox, progress
        self._number = 0
        self.backend = ""
        """Of `policy.promises`, once a session of Paddock's has said so."""

    def run(self, trials: Iterable[Trial]) -> dict[Trial, Outcome]:
        """What became of each.

        Raises:
            Refusal: the sandbox does not start.
        """
        wanted = list(trials)
        groups: dict[object, list[Trial]] = {}
        for trial in wanted:
            groups.setdefault(trial.group, []).append(trial)
        outcomes: dict[Trial, Outcome] = {}
        for group in groups.values():
            outcomes |= self._scene(group)
        return {trial: outcomes[trial] for trial in wanted}

    def _scene(self, trials: list[Trial]) -> dict[Trial, Outcome]:
        self._number += 1
        base = self._base / str(self._number)
        with ExitStack() as stack:
            plainly = self.backend not in ("", promises.GUARD) and not trials[0].at_border
            scene = Scene(base, self._sandbox, trials, stack, plainly=plainly)
            found = {}
            for trial, outcome in scene.outcomes():
                self._progress(f"{trial.concern}: {trial.name}")
                found[trial] = outcome
            self.backend = self.backend or scene.backend()
        return found


class Scene:
    """One scratch area with all witnesses, and one sandbox after another there; usually one.

    Args:
        base: of the scratch area; made.
        sandbox: which.
        trials: what is tried, all of one group.
        stack: ends everything.
        plainly: git makes the worktree, in a fraction of the time; the guard wants one of Paddock's.
    """

    def __init__(self, base: Path, sandbox: Sandbox, trials: list[Trial], stack: ExitStack, *, plainly: bool) -> None:
        self._sandbox, self._trials = sandbox, trials
        name = f"{NAME}{base.parents[1].name}-{os.urandom(6).hex()}"
        self._tokens = {place: f"secret-{os.urandom(9).hex()}" for place in PLACES}
        self._words = {trial: f"word{os.urandom(9).hex()}" for trial in trials}
        self._report = base / "report.json"
        xdg = {f"XDG_{each}_HOME": str(base / each.lower()) for each in ("CONFIG", "STATE", "CACHE", "DATA")}
        self._environment = {
            **{key: value for key, value in os.environ.items() if key.startswith("PADDOCK_")},
            **{"PATH": SYSTEM_PATH, "HOME": str(base / "home"), "LANG": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1"},
            **{"XDG_RUNTIME_DIR": str(base / "run"), "API_TOKEN": self._tokens["the API key"], **xdg},
            **dict.fromkeys(VARIABLES, self._tokens["a variable"]),
            **dict(sandbox.environment),
        }
        tree = str(base / "tree")
        add = ["git", "worktree", "add", "-q", "-b", "agent/job", tree]
        if sandbox.paddock and not plainly:
            add = programmes.paddock("worktree", "add", "job", "--path", tree)
        elsewhere = {"temp": Path("/tmp") / name, "shared": Path("/dev/shm") / name}
        self._ground = Ground(base, elsewhere, self._tokens, self._environment, add)
        stack.callback(self._ground.remove)
        self._ground.make()
        self._listeners = Listeners(base / "run", name, self._tokens, self._tokens["the API key"])
        stack.callback(self._listeners.close)
        self._bystander = Bystander(self._tokens, base / PRIZES["an SSH key"])
        stack.callback(self._bystander.end)
        self._terminal = Terminal()
        stack.callback(self._terminal.close)
        self._memory = SystemV(self._tokens["memory of System V"], self._tokens["a message of System V"])
        stack.callback(self._memory.close)
        self._inherited = os.open(base / PRIZES["a letter"], os.O_RDONLY)
        stack.callback(os.close, self._inherited)
        self._facts = {
            **self._ground.facts(), **self._listeners.facts, **self._memory.facts, "NAME": name,
            "PYTHON": sys.executable, "TTY": self._terminal.name, "DESCRIPTOR": str(self._inherited),
        }  # fmt: skip

    def outcomes(self) -> Iterator[tuple[Trial, Outcome]]:
        """Each trial with what became of it."""
        waiting = list(self._trials)
        while waiting:
            begun: dict[Trial, Outcome] = {}
            session = Session(self._words_of(waiting[0]), self._environment, self._ground, self._inherited, waiting[0])
            try:
                self._ground.keep()
                self._seen("")
                while waiting and session.lives:
                    trial = waiting.pop(0)
                    begun[trial] = self._tried(trial, session)
                    session.lives = session.lives and not trial.alone
            finally:
                session.end(kill=any(trial.end == "kill" for trial in begun))
            yield from self._ended(begun).items()

    def backend(self) -> str:
        """What enforced the jail, as Paddock's report says."""
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads(self._report.read_text())["backend"])
        return ""

    def _words_of(self, trial: Trial) -> list[str]:
        places = {each: str(self._ground.base / each) for each in ("tree", "home", "main")} | self._facts
        words = [_filled(word, places) for word in self._sandbox.words]
        if self._sandbox.paddock:
            words += ["--report", str(self._report), *(_filled(word, places) for word in trial.run.split())]
            words += ["--quiet", "--"]
        return [*words, python(), "-I", "-S", str(self._ground.tree / "inside.py")]

    def _given(self, trial: Trial) -> dict[str, str]:
        """The variables of a trial's scripts."""
        word = self._words[trial]
        return {**self._facts, "VICTIM": str(self._bystander.pid), "WORD": word, "PROOF": f"proof-{word}"}

    def _tried(self, trial: Trial, session: "Session") -> Outcome:
        given, began = self._given(trial), time.monotonic()
        output = session.ask(trial, given)
        if not session.lives:
            session.end(kill=False)  # some attacks end their sandbox; what its end changes is no effect of theirs
        effects = self._effects(trial, output, given, whole=session.lives)
        return Outcome(effects, output, time.monotonic() - began)

    def _effects(self, trial: Trial, output: str, given: dict[str, str], *, whole: bool) -> tuple[str, ...]:
        word = self._words[trial]
        checked = bool(trial.check) and not trial.alone and self._outside(trial.check, given)[0] == 0
        if trial.kind != ATTACK:
            return ("works",) if checked or (not trial.check and word in output) else ()
        found = [f"read {place}" for place, token in self._tokens.items() if token in output]
        found += ["succeeded"] if given["PROOF"] in output.splitlines() else []
        found += ["had its effect"] if checked else []
        return (*found, *self._seen(word, whole=whole and not trial.alone))

    def _seen(self, word: str, *, whole: bool = True) -> list[str]:
        """What the witnesses have seen since they were last asked; the scratch area is as before again.

        Args:
            word: of the attack.
            whole: the repositories count, too.
        """
        changed = self._changes(whole=whole)
        if changed:
            self._ground.restore(changed)
        return [
            *(f"changed {path}" for path in changed[:3]),
            *self._listeners.arrived(word),
            *self._bystander.changes(),
            *self._terminal.changes(),
        ]

    def _changes(self, *, whole: bool) -> list[str]:
        return [path for path in self._ground.changes() if whole or path.partition("/")[0] in _OUTSIDE]

    def _ended(self, begun: dict[Trial, Outcome]) -> dict[Trial, Outcome]:
        """The outcomes, once the sandbox has ended: what lives on, and what its user does next."""
        words = {self._words[trial]: trial for trial in begun}
        until = time.monotonic() + (_LATE if self._sandbox.words else 0)
        while (living := survivors(words)) and time.monotonic() < until:
            time.sleep(0.05)
        for word in living:
            trial = words[word]
            if trial.kind == ATTACK:
                begun[trial] = begun[trial]._replace(effects=(*begun[trial].effects, "outlived the sandbox"))
        until = time.monotonic() + _LATE
        while living and time.monotonic() < until:  # one that makes a session of its own meanwhile is in another group
            for pid in living.values():
                with suppress(ProcessLookupError):
                    group = os.getpgid(pid)  # its own, or that of the trial
                    os.killpg(group if group != os.getpgrp() else pid, signal.SIGKILL)
            time.sleep(0.01)
            living = survivors(words)
        return {trial: self._next(trial, outcome) if trial.alone else outcome for trial, outcome in begun.items()}

    def _next(self, trial: Trial, outcome: Outcome) -> Outcome:
        """The outcome with what comes of what the user does next."""
        given = self._given(trial)
        effects = list(outcome.effects)
        line = trial.then if self._sandbox.paddock else trial.plain
        if line:
            status, given["SAID"] = self._outside(line, given)
            effects += [] if status is not None or trial.kind != ATTACK else ["made its user wait for ever"]
        effects += [f"changed {path}" for path in self._changes(whole=False)[:3]]
        if trial.check and self._outside(trial.check, given)[0] == 0:
            effects.append("works" if trial.kind != ATTACK else "had its effect")
        if trial.kind != ATTACK:
            effects = [effect for effect in effects if effect == "works"]
        return outcome._replace(effects=tuple(effects), output=outcome.output + given.get("SAID", ""))

    def _outside(self, line: str, given: dict[str, str]) -> tuple[int | None, str]:
        """Status (None: it took too long) and output of a line of sh(1), in the main checkout."""
        script = _PRELUDE + line
        process = subprocess.Popen(
            ["/bin/sh", "-c", script], cwd=self._ground.base / "main", env=self._environment | given,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=_NEXT if self._sandbox.paddock else _PLAINLY)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, output.decode(errors="replace")[:_MOST]


def _filled(word: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        word = word.replace(f"{{{name}}}", path)
    return word


@functools.cache
def python() -> str:
    """An interpreter that sandboxes have to show: the system's where it is new enough, else this one."""
    for directory in SYSTEM_PATH.split(":"):
        path = f"{directory}/python3"
        if os.access(path, os.X_OK):
            new = "import sys; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([path, "-I", "-S", "-c", new], check=False).returncode == 0:
                return path
    return sys.executable


class Session:
    """One sandbox, from its start to its end.

    Args:
        words: that start it.
        environment: all of it.
        ground: around it.
        inherited: a descriptor that its launcher inherits.
        trial: its first one.

    Raises:
        Refusal: it did not start; what it printed is the context.
    """

    def __init__(
        self, words: list[str], environment: dict[str, str], ground: Ground, inherited: int, trial: Trial
    ) -> None:
        self._words, self._environment, self._ground = words, environment, ground
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.lives = True
        if trial.terminal:
            return
        with open(ground.base / "errors", "wb") as errors:
            self._process = subprocess.Popen(
                words, cwd=ground.tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True, pass_fds=(inherited,),
            )  # fmt: skip
        if self._line(_START) is None:
            self.end(kill=True)
            said = (ground.base / "errors").read_text(errors="replace").strip()
            why = said[-2000:] or f"it exited without saying why, or was not there after {_START} seconds"
            raise Refusal("selftest-failed", f"the sandbox did not start: {words[0]}", context=why)

    def ask(self, trial: Trial, given: dict[str, str]) -> str:
        """Runs one trial there and returns what it printed."""
        order = {"name": trial.name, "script": trial.script, "python": trial.python, "environment": given,
                 "seconds": float(trial.seconds), "terminal": bool(trial.terminal)}  # fmt: skip
        if trial.terminal:
            return self._at_terminal(order)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self.lives = False
            return ""
        answer = self._line(float(trial.seconds) + 10)
        self.lives = answer is not None
        return str(answer["output"]) if answer else ""

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """The next line of what runs inside; None when it ended or took too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            return self._line(seconds)  # the sandbox's own
        return found

    def _at_terminal(self, order: dict[str, Any]) -> str:
        """Runs one trial with a terminal, and returns what it printed and what was typed there."""
        self.lives = False  # the next one has its own
        path = self._ground.tree / "order.json"
        path.write_text(json.dumps(order))
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        child = os.fork()
        if child == 0:
            try:
                os.login_tty(theirs)
                os.chdir(self._ground.tree)
                os.execvpe(self._words[0], [*self._words, str(path)], self._environment)
            finally:
                os._exit(126)
        until = time.monotonic() + float(order["seconds"]) + _START
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 1 << 16)
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                until += _START
        typed = _typed(theirs)
        changed = termios.tcgetattr(theirs)[:4] != before[:4]
        os.close(ours)
        os.close(theirs)
        answer = Path(f"{path}.answer")
        output = json.loads(answer.read_text())["output"] if answer.exists() else ""
        proof = order["environment"]["PROOF"]
        word = order["environment"]["WORD"].encode()
        return output + (f"\n{proof}" if word in typed or changed else "")

    def end(self, *, kill: bool) -> None:
        """Ends it: its input ends, or its launcher is killed."""
        if self._process is None:
            return
        if kill:
            self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _typed(terminal: int) -> bytes:
    """What waits to be read at a terminal."""
    raw = termios.tcgetattr(terminal)
    raw[3] &= ~(termios.ICANON | termios.ECHO)
    before = termios.tcgetattr(terminal)
    termios.tcsetattr(terminal, termios.TCSANOW, raw)
    found = b""
    while select.select([terminal], [], [], 0.1)[0]:
        found += os.read(terminal, 4096)
    termios.tcsetattr(terminal, termios.TCSANOW, before)
    return found
