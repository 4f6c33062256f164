"""A real miniature jail that tries to break every promise: the proof behind `paddock doctor`.

Makes a throw-away git worktree, things outside it worth reaching (a secret, sockets, a terminal, a listener), runs
`attempts.py` in a jail there, and judges what came back and what can be seen from outside.
"""

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from launcher import programmes
from launcher.session.attempts import command_lines
from launcher.session.places import Places, made
from launcher.session.state import SHORT_TEMP_BASE
from policy import promises
from policy.errors import Refusal
from policy.plan import SYSTEM_PATH

_OPEN_FILES = "200"

Layer = tuple[str, bool, bool, str, str]
"""Name, whether it is present, whether usable, why not, what to do."""

Attempt = tuple[str, str, str, str]
"""("attack" | "twin", what, "denied" | "done", detail)."""


class Proof(NamedTuple):
    """What the self-test found for one row.

    Attributes:
        row: id in `policy.promises`.
        promise: its text.
        expected: "held" or "not held", by the table for this backend.
        proven: whether every attack was denied and every allowed twin went through.
        attempts: ("attack" | "twin", what, "denied" | "done", detail).
        reason: why the backend does not hold it, when it does not.
    """

    row: str
    promise: str
    expected: str
    proven: bool
    attempts: tuple[tuple[str, str, str, str], ...]
    reason: str

    @property
    def honest(self) -> bool:
        """Whether the table claims no more than was proven."""
        return self.proven or self.expected == promises.NOT_HELD


class Result(NamedTuple):
    """Backend that was used, and a proof for each row."""

    backend: str
    proofs: tuple[Proof, ...]


def run(places: Places, *, options: tuple[str, ...] = ()) -> Result:
    """Runs the self-test.

    Args:
        places: the miniature worktree and its state are made beside the cache, so that they lie on the disk that the
            state of real worktrees lies on, and outside what every jail gets. Nothing of them stays.

    Refusals: the jail did not start; the text is what `paddock run` said.
    """
    with ExitStack() as stack:
        above = made(places.cache + "-doctor")
        stack.callback(_remove_empty, above)
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="doctor-", dir=above)))
        given = _prepare(base, stack)
        udp = _listener(stack, socket.SOCK_DGRAM)
        tcp = _listener(stack, socket.SOCK_STREAM)
        given |= {"tcp": str(tcp.getsockname()[1]), "udp": str(udp.getsockname()[1])}
        inherited = os.open(given["outside"] + "/secret", os.O_RDONLY)
        stack.callback(os.close, inherited)
        given["descriptor"] = str(inherited)
        backend, rows = _jailed(base, given, inherited, options)
        rows["network"].append(("attack", "send over UDP", "done" if _received(udp) else "denied", ""))
        alive = given["marker"].encode() in command_lines()
        rows["survival"].append(("attack", "outlive the jail", "done" if alive else "denied", ""))
        left = [
            path for path in (f"{given['outside']}/new", f"{given['home']}/.paddock-selftest") if os.path.exists(path)
        ]
        rows["writes"] = _seen_outside(rows["writes"], left)
        return Result(backend, tuple(_judged(backend, name, rows.get(name, [])) for name, _, _ in promises.ROWS))


def _seen_outside(attempts: list[Attempt], left: list[str]) -> list[Attempt]:
    """What was written, judged by what is there: a home below /tmp has its name in the jail's own /tmp, too."""
    home = any(path.endswith("/.paddock-selftest") for path in left)
    judged = [
        (kind, what, "denied", "only the jail's own was written")
        if what == "write into the real home" and state == "done" and not home
        else (kind, what, state, detail)
        for kind, what, state, detail in attempts
    ]
    return judged + [("attack", f"leave {path} behind", "done", "") for path in left]


def _prepare(base: Path, stack: ExitStack) -> dict[str, str]:
    """The worktree and what is worth reaching outside it."""
    root, outside, tree = base / "worktree", base / "outside", base / "tree"
    inside = root / "area"  # without mounts the root itself is frozen around .git
    for directory in (root / ".git/objects", root / ".git/refs", inside, outside, tree / "exception", tree / "beside"):
        directory.mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for file in (inside / "file", root / ".envrc", outside / "secret", outside / "chmod",
                 tree / "exception/file", tree / "beside/file"):  # fmt: skip
        file.write_text("content\n")
    shutil.copyfile(Path(__file__).with_name("attempts.py"), inside / "attempts.py")
    marker = f"paddock-doctor-{os.urandom(8).hex()}"
    stream = socket.socket(socket.AF_UNIX)
    abstract = socket.socket(socket.AF_UNIX)
    stack.callback(stream.close)
    stack.callback(abstract.close)
    # The path of a socket is short by law (108 bytes); the directory's descriptor makes it so.
    descriptor = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    stream.bind(f"/proc/self/fd/{descriptor}/s")
    os.close(descriptor)
    abstract.bind(f"\0{marker}")
    stream.listen()
    abstract.listen()
    ours, theirs = pty.openpty()
    stack.callback(os.close, ours)
    stack.callback(os.close, theirs)
    shared = Path(f"/dev/shm/{marker}")
    shared.write_text("content\n")
    stack.callback(shared.unlink)
    return {
        "worktree": str(root),
        "inside": str(inside),
        "handoff": str(root / ".envrc"),
        "outside": str(outside),
        "tree": str(tree),
        "home": str(Path.home()),
        "private": "\n".join(_private_files(Path.home())),
        "marker": marker,
        "pid": str(os.getpid()),
        "unix": _short(outside / "s", stack),
        "abstract": marker,
        "shm": str(shared),
        "terminal": os.ttyname(theirs),
        "open_files": _OPEN_FILES,
    }


def _private_files(home: Path) -> list[str]:
    """Files directly in the home directory: histories, tokens, settings. None of them is anybody's toolchain."""
    try:
        found = [str(path) for path in home.iterdir() if path.is_file() and not path.is_symlink()]
    except OSError:
        found = []
    return [*found, str(home / ".netrc")]


def _short(path: Path, stack: ExitStack) -> str:
    if len(os.fsencode(path)) < 100:
        return str(path)
    link = Path(SHORT_TEMP_BASE) / f"paddock-{os.urandom(6).hex()}"
    link.symlink_to(path)
    stack.callback(link.unlink)
    return str(link)


def _listener(stack: ExitStack, kind: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    stack.callback(sock.close)
    sock.bind(("127.0.0.1", 0))
    if kind == socket.SOCK_STREAM:
        sock.listen()
    return sock


_Rows = dict[str, list[Attempt]]


def _jailed(base: Path, given: dict[str, str], inherited: int, options: tuple[str, ...]) -> tuple[str, _Rows]:
    """Runs the attempts in a jail and returns the backend and what they say."""
    report, prepared = base / "report.json", base / "worktree/given.json"
    command = [
        *programmes.paddock("run", "--worktree", given["worktree"], "--freeze-root"),
        *("--net", "none", "--ro", given["tree"], "--deny", given["tree"] + "/exception"),
        *("--limit", f"open_files={_OPEN_FILES}", "--report", str(report), *options),
        *("--", sys.executable, "-I", "-S", given["inside"] + "/attempts.py", str(prepared), given["marker"]),
    ]
    # What is refused here is no denial that the user looks for, and no worktree of his has this private home.
    own = {"XDG_STATE_HOME": f"{base}/state", "XDG_CACHE_HOME": f"{base}/cache"}
    bystander_name = f"paddock-bystander-{os.urandom(8).hex()}"
    prepared.write_text(json.dumps(given | {"bystander": bystander_name}))
    sleep = shutil.which("sleep", path=SYSTEM_PATH) or "/bin/sleep"
    with subprocess.Popen([bystander_name, "600"], executable=sleep, stdin=subprocess.DEVNULL) as bystander:
        try:
            done = subprocess.run(
                command,
                env=dict(os.environ) | own | {"PADDOCK_SELFTEST_SECRET": given["marker"]},
                cwd=given["worktree"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                pass_fds=(inherited,),
            )
        finally:
            bystander.kill()
    try:
        rows = {name: [tuple(item) for item in outcome] for name, outcome in json.loads(done.stdout).items()}
        return json.loads(report.read_text())["backend"], rows
    except (ValueError, OSError, KeyError):
        raise Refusal(
            "selftest-failed",
            f"the miniature jail did not run (exit status {done.returncode})",
            context=(done.stderr or done.stdout or "it said nothing").strip()[-2000:],
        ) from None


def _received(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return bool(sock.recv(16))
    except BlockingIOError:
        return False


def _remove_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        return  # another doctor is at work there


def _judged(backend: str, name: str, attempts: list[tuple[str, str, str, str]]) -> Proof:
    expected, reason = promises.verdict(name, backend)
    promise = next(text for row, text, _ in promises.ROWS if row == name)
    states = {kind: [state for found, _, state, _ in attempts if found == kind] for kind in ("attack", "twin")}
    proven = (
        bool(states["attack"] and states["twin"])
        and set(states["attack"]) == {"denied"}
        and set(states["twin"]) == {"done"}
    )
    return Proof(name, promise, expected, proven, tuple(attempts), reason)


def verdict(result: Result) -> str:
    """One sentence on what all of it comes to."""
    broken = [proof.row for proof in result.proofs if not proof.honest]
    if broken:
        return f"BROKEN: do not run agents here; these promises do not hold: {', '.join(broken)}"
    missing = [proof.row for proof in result.proofs if proof.expected != "held"]
    if missing:
        return f"agents can run here; this backend does not hold {', '.join(missing)}, the rest was tested and holds"
    return "agents can run here; every promise was tested and holds"


def document(layers: Iterable[Layer], result: Result | None, refused: Refusal | None) -> dict[str, object]:
    """All of it, as JSON has it.

    Args:
        layers: as `launcher.jail.probe.describe` tells of them.
        result: of the test; None when it was refused.
        refused: why.
    """
    names = ("layer", "present", "usable", "why", "remedy")
    return {
        "layers": [dict(zip(names, row, strict=True)) for row in layers],
        "backend": result.backend if result else None,
        "verdict": verdict(result) if result else None,
        "promises": [proof._asdict() | {"honest": proof.honest} for proof in result.proofs] if result else [],
        "refusal": refused.as_dict() if refused else None,
    }
