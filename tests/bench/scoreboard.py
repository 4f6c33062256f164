"""Paddock's backends beside other sandboxes at the same job: `python -m tests.bench.scoreboard [--json FILE]`.

The job: a command works in a git worktree, cannot change what shells, editors and agents execute from there, writes
nothing else, does not see the home directory, and has no network.
Attacks and controls are those of `paddock selftest`; start-up, memory and the cost of work with files are measured
here. Prints a table, draws docs/scoreboard.svg, and writes the tables of docs/scoreboard.md and of the front page.
Installs what is missing: with apt where it runs as root, and from npm.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import pwd
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.jail import syscalls
from launcher.selftest import catalogue
from tests.bench import chart, harness
from tests.support import agent_packages, identity, install
from tests.support.identity import Who
from tests.support.manual import README, ROOT
from tests.support.paddock import below, content

PICTURE, PAGE = ROOT / "docs/scoreboard.svg", ROOT / "docs/scoreboard.md"

LEFT_OUT = ("proxy", "keys", "limits", "border")
"""Concerns of the self-test that are no part of the job: hosts that are allowed, API keys, limits, and what the user
does with an agent's work afterwards."""

ROUNDS, WORK_ROUNDS, PATIENCE = 30, 7, 1_800


@dataclass(frozen=True)
class Sandbox:
    """One row.

    Args:
        name: as it is printed.
        words: what a user types in front of the command. ``{tree}`` is the worktree, ``{main}`` its main checkout,
            ``{account}`` the user's home directory, ``{settings}`` the file below, ``{node}``, ``{codex}`` and
            ``{srt}`` what npm installed, ``{packages}`` where.
        backend: of the self-test, where it is Paddock.
        environment: of Paddock, on top.
        settings: a file that it reads.
        needs: programmes, by the Debian package that has each.
        version: what a user types to see which one it is.
    """

    name: str
    words: str
    backend: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    settings: str = ""
    needs: tuple[tuple[str, str], ...] = ()
    version: str = ""


_BWRAP = ("bwrap", "bubblewrap")
_CLEAN = "env -i PATH=/usr/bin:/bin HOME={account} LANG=C.UTF-8"
_EXECUTED = (".git", ".envrc", ".vscode", ".claude", ".mcp.json", ".zed", ".idea")
"""What other programmes execute or obey, in a worktree: read-only."""

SANDBOXES = (
    Sandbox("paddock, namespaces", "{paddock} run --backend landlock --quiet --", "namespaces"),
    Sandbox(
        "paddock, guard",
        "{paddock} run --backend landlock --quiet --",
        "guard",
        environment=(("PADDOCK_NO_USERNS", "1"),),
    ),
    Sandbox("paddock, bubblewrap", "{paddock} run --backend bubblewrap --quiet --", "bubblewrap", needs=(_BWRAP,)),
    Sandbox(
        "bubblewrap",
        f"{_CLEAN} bwrap --unshare-all --unshare-user --disable-userns --die-with-parent --new-session"
        " --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib"
        " --symlink usr/lib64 /lib64 --ro-bind /etc /etc --proc /proc --dev /dev --tmpfs /tmp --tmpfs {account}"
        " --ro-bind {main}/.git {main}/.git --bind {tree} {tree}"
        + "".join(f" --ro-bind-try {{tree}}/{name} {{tree}}/{name}" for name in _EXECUTED)
        + " --chdir {tree} --",
        needs=(_BWRAP,),
        version="bwrap --version",
    ),
    Sandbox(
        "firejail",
        f"{_CLEAN} firejail --quiet --ignore=seccomp --profile=default --net=none --whitelist={{tree}}"
        " --whitelist={main}/.git --read-only={main}/.git --private-tmp --private-dev --ipc-namespace"
        " --dbus-user=none --dbus-system=none --restrict-namespaces --disable-mnt --nogroups --allow-debuggers"
        " --seccomp=io_uring_setup,io_uring_enter,io_uring_register,quotactl --seccomp.block-secondary"
        + "".join(f" --read-only={{tree}}/{name}" for name in _EXECUTED)
        + " --",
        needs=(("firejail", "firejail"),),
        version="firejail --version",
    ),
    Sandbox(
        "codex sandbox",
        f"{_CLEAN} {{codex}} sandbox -c default_permissions='\"job\"'"
        ' -c \'permissions.job.filesystem={":minimal"="read", "{packages}"="read", "{main}/.git"="read",'
        ' ":workspace_roots"={"."="write", '
        + ", ".join(f'"{name}"="read"' for name in _EXECUTED)
        + "}}' -c permissions.job.network.enabled=false -- env TMPDIR={account}",
        needs=(_BWRAP,),
        version="{codex} --version",
    ),
    Sandbox(
        "sandbox-runtime",
        f"{_CLEAN} {{node}} {{srt}} --settings {{settings}} -- env TMPDIR={{account}}",
        settings="""{
  "network": {"allowedDomains": [], "deniedDomains": []},
  "filesystem": {
    "denyRead": ["{above}", "/tmp", "/run", "/dev/shm"],
    "allowRead": [".", "../main/.git"],
    "allowWrite": ["."],
    "denyWrite": [".envrc", ".claude/settings.json", ".zed"]
  }
}
""",
        needs=(_BWRAP, ("socat", "socat"), ("rg", "ripgrep")),
        version="{node} -p \"require('{srt}/../../package.json').version\"",
    ),
    Sandbox("env, no sandbox", "env"),
)

WORK = ("git status, 4,000 files", "unpack 1,000 files", "start 40 compilers")
_WORK = """
import json, subprocess, sys, time

def seconds(*words):
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin

def unpacked():
    taken = seconds("mkdir", "unpacked") + seconds("tar", "-xf", "archive.tar", "-C", "unpacked")
    return taken + seconds("rm", "-r", "unpacked")

compiled = 'for n in 0 1 2 3; do for m in 0 1 2 3 4 5 6 7 8 9; do python3 -I -S -m py_compile f/$n/$m.py; done; done'
seconds("git", "status")
print(json.dumps([sum(seconds("git", "status") for _ in range(5)), unpacked(), seconds("sh", "-c", compiled)]))
"""


@dataclass(frozen=True)
class Ground:
    """Where everything happens.

    Args:
        who: the user that all sandboxes are started by.
        main: the main checkout.
        tree: the worktree.
        programs: what stands for the programmes in `Sandbox.words`.
    """

    who: Who
    main: Path
    tree: Path
    programs: Mapping[str, str]

    def words(self, sandbox: Sandbox) -> str:
        """What stands in front of a command; ``{tree}`` and ``{main}`` are left for the self-test."""
        settings = self.main.with_name(f"{sandbox.name}.json")
        filled = dict(self.programs) | {"account": str(self.who.home), "above": str(self.who.home.parent)}
        if sandbox.settings:
            settings.write_text(_filled(sandbox.settings, filled), encoding="utf-8")
        return _filled(sandbox.words, filled | {"settings": shlex.quote(str(settings))})

    def typed(self, sandbox: Sandbox, *command: str) -> list[str]:
        """The whole command line."""
        line = _filled(self.words(sandbox), {"tree": str(self.tree), "main": str(self.main)})
        return [*shlex.split(line), *command]

    @property
    def uid(self) -> int | None:
        """Whom to become; not by setpriv(1), whose start would be measured too."""
        return self.who.uid if self.who.prefix else None

    def start(self, sandbox: Sandbox, *command: str) -> "subprocess.Popen[str]":
        """Starts a command in a sandbox, in the worktree, and returns at once."""
        uid = self.uid
        return subprocess.Popen(
            self.typed(sandbox, *command), cwd=self.tree, env=self.who.environment(dict(sandbox.environment)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            user=uid, group=uid, extra_groups=None if uid is None else (),
        )  # fmt: skip

    def run(self, sandbox: Sandbox, *command: str) -> str:
        """What a command in a sandbox prints.

        Raises:
            Failed: it, or the sandbox, failed.
        """
        with self.start(sandbox, *command) as process:
            output, complaint = process.communicate()
        if process.returncode:
            said = complaint.strip().splitlines()
            raise Failed(said[-1][:200] if said else f"exit status {process.returncode}")
        return output


class Failed(Exception):
    """A sandbox, or what ran in it, failed, in its own words."""


def _filled(text: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        text = text.replace(f"{{{name}}}", path)
    return text


def measured(rounds: int) -> dict[str, Any]:
    """Everything that is shown, as plain data."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()}"
        f" {platform.release().partition('-')[0]}, {os.cpu_count()} processors",
        "load": round(os.getloadavg()[0], 1),
    }
    _apt()
    with _ground() as ground:
        rows = {each.name: {"name": each.name, "ours": bool(each.backend)} for each in SANDBOXES}
        for each in SANDBOXES:
            if failure := _failure(ground, each):
                rows[each.name]["failure"] = failure
        started = [each for each in SANDBOXES if "failure" not in rows[each.name]]
        found["versions"] = [_version(ground, each) for each in started if each.version]
        _measure(ground, started, rows, rounds)
        _attack(ground, started, rows)
    return found | {"rows": list(rows.values())}


def _version(ground: Ground, sandbox: Sandbox) -> str:
    """Its name and number."""
    words = shlex.split(_filled(sandbox.version, ground.programs))
    said = ground.who.run(words, cwd=ground.who.home).stdout
    number = re.search(r"\d+(\.\d+)+\S*", said)
    if number is None:
        raise Failed(f"{sandbox.version} names no version: {said[:200]}")
    return f"{sandbox.name} {number[0]}"


def _measure(ground: Ground, started: Sequence[Sandbox], rows: dict[str, dict[str, Any]], rounds: int) -> None:
    """Start-up, memory, and work; all take turns."""
    print("measuring start-up, memory and work", file=sys.stderr)
    true = shutil.which("true", path=identity.SYSTEM_PATH) or "/bin/true"
    bare = Sandbox("true", "")
    ways = {
        each.name: harness.command(
            ground.typed(each, true), ground.tree, ground.who.environment(dict(each.environment)), ground.uid
        )
        for each in (bare, *started)
    }
    starts = harness.turns(ways, rounds)
    works: dict[str, list[list[float]]] = {}
    for _ in range(WORK_ROUNDS):
        for each in (bare, *started):
            output = ground.run(each, "/usr/bin/env", "python3", "-I", "-S", str(ground.tree / "work.py"))
            works.setdefault(each.name, []).append(json.loads(output.splitlines()[-1]))
    for each in started:
        row = rows[each.name]
        ratios = [one / other for one, other in zip(starts[each.name], starts[bare.name], strict=True)]
        low, row["startup"], high = statistics.quantiles(ratios, n=4)
        row["spread"] = (high - low) / 2
        row["processes"], row["memory"] = resident(ground.start(each, "sleep", "600"))
        inside, outside = ([min(one) for one in zip(*works[it.name], strict=True)] for it in (each, bare))
        row["work"] = [one / other for one, other in zip(inside, outside, strict=True)]


def resident(started: "subprocess.Popen[str]") -> tuple[int, float | None]:
    """How many processes a live sandbox has beside its command, `sleep`, and their memory in MiB; ends it.

    Pss: shared pages by their share. None where one of them is another user's, which only root can read.
    """
    with started as process:
        until = time.monotonic() + 30
        while not (asleep := _asleep(process.pid)):
            if time.monotonic() > until or process.poll() is not None:
                process.kill()
                raise Failed("the command does not run")
            time.sleep(0.02)
        time.sleep(0.5)  # what starts beside it has started, too
        pids = [pid for pid in (process.pid, *below(process.pid)) if pid not in asleep]
        try:
            memory: float | None = harness.memory(pids)
        except PermissionError:
            memory = None
        for pid in asleep:
            os.kill(pid, signal.SIGKILL)  # then the sandbox ends by itself, and leaves nothing
    return len(pids), memory


def _asleep(pid: int) -> list[int]:
    return [each for each in (pid, *below(pid)) if content(each, "comm") == b"sleep\n"]


def _attack(ground: Ground, started: Sequence[Sandbox], rows: dict[str, dict[str, Any]]) -> None:
    """The self-test: all in one run, so that what the machine allows is asked once."""
    concerns = [word for name in catalogue.concerns() if name not in LEFT_OUT for word in ("--concern", name)]
    ours = [each for each in started if each.backend]
    others = [each for each in started if not each.backend]
    every = len(ours) == sum(bool(each.backend) for each in SANDBOXES)
    runs = [("all", ours)] if every else [(each.backend, [each]) for each in ours]
    for number, (backend, tried) in enumerate(runs):
        behind = others if number == 0 else []
        words = ["--backend", backend, *(word for each in behind for word in ("--prefix", ground.words(each)))]
        print(f"attacking {', '.join(each.name for each in (*tried, *behind))}", file=sys.stderr)
        ended = ground.who.run(
            [ground.programs["paddock"], "selftest", "--json", *concerns, *words], timeout=PATIENCE, cwd=ground.who.home
        )
        if ended.returncode not in (0, 1):
            raise Failed(f"the self-test failed: {ended.stderr.strip()[-1000:]}")
        for each, seen in zip((*tried, *behind), json.loads(ended.stdout)["sandboxes"], strict=True):
            rows[each.name] |= tally(seen["trials"])


def tally(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the self-test says of one sandbox; what Paddock does not promise is a miss as everybody's."""
    number = dict.fromkeys(("held", "escaped", "impossible", "works", "broken"), 0)
    concerns: dict[str, list[int]] = {}
    missed: dict[str, dict[str, list[str]]] = {"attack": {}, "control": {}}
    for trial in trials:
        attack, verdict, concern = trial["kind"] == "attack", trial["verdict"], trial["concern"]
        counts = concerns.setdefault(concern, [0, 0])
        miss = verdict in ("ESCAPED", "BROKEN", "not promised")
        if verdict == "not possible here":
            number["impossible"] += 1
        elif attack:
            number["escaped" if miss else "held"] += 1
            counts[1 if miss else 0] += 1
        else:
            number["broken" if miss else "works"] += 1
        if miss:
            missed[trial["kind"]].setdefault(concern, []).append(trial["name"])
    return {**number, "concerns": concerns, "missed": missed}


# What is installed, and where it runs.


def _apt() -> None:
    """Installs the Debian packages that are missing, where root runs this; else their rows say what is missing."""
    lacking = sorted({package for each in SANDBOXES for name, package in each.needs if not shutil.which(name)})
    if lacking and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-q", *lacking], stdout=subprocess.DEVNULL, check=False)


def _runtime() -> Path:
    """Where Anthropic's sandbox-runtime is, in the version of the lock file."""
    locked = Path(__file__).with_name("peers")
    digest = hashlib.sha256((locked / "package-lock.json").read_bytes()).hexdigest()[:16]
    root = install.public_root(install.STABLE)
    place = root / f"peers-{digest}"
    with install.locked(root / "lock-peers"):
        if not place.exists():
            with tempfile.TemporaryDirectory(prefix="making-peers-", dir=root) as name:
                for each in locked.iterdir():
                    shutil.copy(each, name)
                words = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
                subprocess.run(words, cwd=name, env=install.CALLER, check=True, stdout=subprocess.DEVNULL)
                Path(name).chmod(0o755)
                Path(name).rename(place)
                Path(name).mkdir()
    return place / "node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js"


@contextmanager
def _ground() -> Iterator[Ground]:
    """A user's home directory with a repository and a worktree; as root in memory, of a user that only we know."""
    agents = agent_packages.install_all()
    programs = {
        "paddock": str(install.install().paddock), "node": str(agent_packages.programs() / "node"),
        "codex": str(agent_packages.programs() / "codex"), "srt": str(_runtime()), "packages": str(agents),
    }  # fmt: skip
    with harness.ground("scoreboard-") as place:
        who = _account(place)
        main, tree = place / "home/agent/main", place / "home/agent/tree"
        _files(main)
        who.give(place / "home/agent")
        for words in (
            ("git", "init", "-q", "-b", "main", "."), ("git", "config", "user.name", "Agent"),
            ("git", "config", "user.email", "agent@example.invalid"), ("git", "add", "-A"),
            ("git", "commit", "-qm", "First."), (programs["paddock"], "worktree", "add", "job", "--path", tree),
        ):  # fmt: skip
            done = who.run(words, cwd=main)
            if done.returncode:
                raise Failed(f"{words}: {done.stderr}")
        yield Ground(who, main, tree, programs)


def _account(place: Path) -> Who:
    """Who starts the sandboxes: an ordinary user. Firejail wants one that the system knows."""
    if os.geteuid() != 0:
        return Who("user", os.getuid(), os.getgid(), Path(pwd.getpwuid(os.getuid()).pw_dir), (), identity.SYSTEM_PATH)
    uid = next(number for number in range(4242, 60_000) if not _known(number))
    home = place / "home/agent"
    home.mkdir(parents=True)
    for name, line in (("passwd", f"agent:x:{uid}:{uid}::{home}:/bin/bash"), ("group", f"agent:x:{uid}:")):
        copy = place / name
        copy.write_text(Path("/etc", name).read_text() + line + "\n")
        syscalls.mount(str(copy), f"/etc/{name}", flags=syscalls.MS_BIND)
    # Not all of `identity.DROP`: without a bounding set, firejail is not root when it starts.
    drop = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all")
    return Who("agent", uid, uid, home, drop, identity.SYSTEM_PATH)


def _known(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _files(main: Path) -> None:
    """What the work is done on; old enough that git trusts its index."""
    for number in range(4_000):
        file = main / f"f/{number // 100}/{number % 100}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"def f{line}(x):\n    return x + {number}\n" for line in range(20)))
    (main / "work.py").write_text(_WORK)
    subprocess.run(["tar", "-cf", "archive.tar", *(f"f/{number}" for number in range(10))], cwd=main, check=True)


def _failure(ground: Ground, sandbox: Sandbox) -> str:
    """Why a sandbox does not start here, in its own words; empty when it does."""
    lacking = [package for name, package in sandbox.needs if not shutil.which(name, path=identity.SYSTEM_PATH)]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    try:
        ground.run(sandbox, "true")
    except Failed as error:
        return f"did not start: {error}"
    return ""


# What is shown.

HEADING = ("sandbox", "held", "escaped", "controls", "start-up", "memory", *WORK)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the table; a sandbox that did not start says so."""
    if failure := row.get("failure"):
        return (row["name"], failure, *[""] * (len(HEADING) - 2))
    return (
        row["name"], str(row["held"]), str(row["escaped"]), f"{row['works']} of {row['works'] + row['broken']}",
        f"{row['startup']:.1f}x", "-" if row["memory"] is None else f"{row['memory']:.1f} MiB",
        *(f"{ratio:.2f}" for ratio in row["work"]),
    )  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    rows = [HEADING, *(cells(row) for row in found["rows"])]
    whole = [row for row in rows if row[2]]
    widths = [max(len(row[at]) for row in (rows if at == 0 else whole)) for at in range(len(HEADING))]
    lines = []
    for row in rows:
        columns = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)] if row[2] else [row[1]]
        lines.append("  ".join([row[0].ljust(widths[0]), *columns]))
    return "\n".join(lines)


def picture(found: Mapping[str, Any]) -> str:
    """The same as a picture: a table of attacks, and bars."""

    def tinted(row: Mapping[str, Any]) -> list[chart.Cell]:
        name, held, escaped, controls = cells(row)[:4]
        return [
            chart.Cell(name, "ours" if row["ours"] else ""),
            chart.Cell(held.partition(":")[0]),
            chart.Cell(escaped, "" if escaped in ("", "0") else "bad"),
            chart.Cell(controls),
        ]

    def drawn(title: str, unit: str, value: Callable[[Mapping[str, Any]], float | None], spread: str = "") -> str:
        bars = []
        for row in found["rows"]:
            seen = None if "failure" in row else value(row)
            note = "" if seen is not None else row.get("failure", "only root can read it")
            bars.append(chart.Bar(row["name"], seen, row.get(spread, 0.0), row["ours"], note))
        return chart.bars(title, bars, unit)

    heading = ("", "held", "escaped", "controls that work")
    return chart.stacked(
        "Attacks held and escaped, start-up, memory and cost of work of Paddock's backends and of other sandboxes",
        [
            chart.matrix("attacks and controls of paddock selftest", heading, [tinted(row) for row in found["rows"]]),
            drawn("start-up, as a ratio to true(1)", "x", lambda row: round(row["startup"], 1), "spread"),
            drawn("memory of the sandbox's own processes", "MiB", lambda row: row["memory"]),
            drawn("work with files, as a ratio to none (mean of three)", "x", lambda row: _mean(row["work"])),
        ],
    )


def _mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in (heading, *rows)]
    return "\n".join([lines[0], "|---|" + "--:|" * (len(heading) - 1), *lines[1:]])


def front(found: Mapping[str, Any]) -> str:
    """The table of the front page, and what to know of it."""
    table = _markdown(HEADING[:6], [cells(row)[:6] for row in found["rows"]])
    made = f"`make scoreboard`, {found['date']}; start-up beside `true`."
    return f"{table}\n\n{made} [What is compared](docs/scoreboard.md), and every miss, ours included."


def tables(found: Mapping[str, Any]) -> str:
    """What was measured, for the page of the manual."""
    rows = [row for row in found["rows"] if "failure" not in row]
    concerns = [name for name in catalogue.concerns() if any(name in row["concerns"] for row in rows)]
    by = [(name, *(f"{row['concerns'][name][1]} of {sum(row['concerns'][name])}" for row in rows)) for name in concerns]
    lines = [
        f"Measured on {found['date']} by an ordinary user, {found['machine']}, load {found['load']} at the start.",
        f"Beside Paddock of the commit that this page belongs to: {', '.join(found['versions'])}.",
        "", _markdown(HEADING, [cells(row) for row in found["rows"]]),
        "", "Attacks that escaped, of those that are possible on this machine:", "",
        _markdown(("concern", *(row["name"] for row in rows)), by), "",
        "## Misses", "",
    ]  # fmt: skip
    for row in rows:
        if row["name"] == SANDBOXES[-1].name:
            continue
        lines.append(f"**{row['name']}**:")
        lines.append("")
        for kind, what in (("attack", "escaped"), ("control", "does not work")):
            for concern, names in row["missed"][kind].items():
                lines.append(f"- {concern}, {what}: {'; '.join(names)}")
        if lines[-1] == "":
            lines.append("None.")
        lines.append("")
    return "\n".join(lines).rstrip()


def configurations() -> str:
    """How each sandbox was started, as a user would type it."""
    plain = {"paddock": "paddock", "node": "node", "srt": "srt", "codex": "codex", "account": "~", "above": "/home",
             "settings": "settings.json", "packages": "/usr/lib/node_modules"}  # fmt: skip
    lines = []
    for each in SANDBOXES:
        words = " ".join([*(f"{name}={value}" for name, value in each.environment), _filled(each.words, plain)])
        lines += [f"**{each.name}**:", "", "```text", *_wrapped(words.replace("node srt", "srt"))]
        lines += [*_filled(each.settings, plain).splitlines(), "```", ""]
    return "\n".join(lines).rstrip()


def _wrapped(words: str) -> list[str]:
    """A command line in lines of at most a hundred characters."""
    lines = [""]
    for word in re.findall(r"(?:'[^']*'|[^\s'])+", words):
        if len(lines[-1]) + len(word) > 96:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def put(path: Path, name: str, content: str) -> None:
    """Replaces what stands between two marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    old = path.read_text(encoding="utf-8")
    before, begin, rest = old.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->\n")
    if not begin or not end:
        raise ValueError(f"{path} has no table {name}")
    path.write_text(before + begin + content + "\n" + end + after, encoding="utf-8")


def main() -> None:
    """Measures, prints, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to put everything that was measured")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="given", help="draw and write this, measure nothing")
    given = parser.parse_args()
    found = json.loads(given.given.read_text()) if given.given else measured(ROUNDS)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(text(found))
    chart.write(PICTURE, picture(found))
    put(PAGE, "measured", tables(found))
    put(PAGE, "configurations", configurations())
    put(README, "scoreboard", front(found))


if __name__ == "__main__":
    main()
