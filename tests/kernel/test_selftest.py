"""`paddock selftest`: nothing escapes from Paddock's jails, and what other sandboxes let through is seen."""

import ast
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.selftest import catalogue
from policy import promises
from tests.support import identity, warmed
from tests.support.features import need, need_backend
from tests.support.identity import Who
from tests.support.install import Installed

pytestmark = pytest.mark.timeout(600)

OTHER_FOR_ROOT = ("reads", "writes", "metadata", "git", "processes", "privilege")
"""Where capabilities and ids would make a difference."""
BORDER = "border"
GUARDED = (
    "hooks", "a filter", "a merge driver", "another repository in the place of the worktree's",
    "a repository in the place of a directory", "a tree with a directory ..",
    "links in the place of what is checked out", "a FIFO where git reads",
    "the main branch, moved in the agent's repository", "a changed workflow, where hand-offs are strict",
    "links where a removal goes", "a worktree that is adopted, with another repository",
    "work of both sides is merged", "a worktree is removed when its work is merged",
)  # fmt: skip
"""At the border after the guard: where the worktree is another one (its `.git` is swapped on the disk, hand-off files
can be written), and each verb and what it has git do, because those jails are the guard's, too. What stands only for
one more setting of git's, object, terminal's sequence or file of the user's is read by the same code whatever held the
agent."""
CLIENT = """
import posix, sys
from _socket import socket
place, paddock, *words = sys.argv[1:]
if words[0] == "run":
    posix.execv(paddock, [paddock, *words])
asked, said = socket(1), b""
asked.connect(place)
env = {name.decode(): value.decode() for name, value in posix.environ.items()}
asked.sendall(repr((words, posix.getcwd(), env)).encode() + b"\\n")
while piece := asked.recv(1 << 16):
    said += piece
status, length, said = said.split(b" ", 2)
posix.write(1, said[:int(length)]), posix.write(2, said[int(length):])
sys.exit(int(status))
"""
"""`paddock`: what starts a session is started; for everything else one is asked that has been loaded."""
CHOSEN = """
import sys
from launcher import programmes
client, place, *names = sys.argv[1:]
launch = programmes.paddock("run")
asking = ["/usr/bin/python3", "-I", "-S", client, place, f"{sys.prefix}/bin/paddock"]
programmes.paddock = lambda *words: launch if words == ("run",) else [*asking, *words]
from launcher.verbs import selftest
class Chosen(selftest.Round):
    def run(self, trials):
        guard = ("PADDOCK_NO_USERNS", "1") in self._sandbox.environment
        return super().run([trial for trial in trials if not guard or trial.name in names])
selftest.Round = Chosen
backends = ["namespaces", "guard"]
sys.exit(selftest.selftest(backend=backends, prefix=[], concern=["border"], html=None, as_json=True, verbose=False))
"""
"""The verb, which tries on the guard what its words name; both share the round without a sandbox."""
EVERYWHERE = ("writes", "metadata", "git", "hand-off files", "keys", "supervision", "limits")
"""What nothing but the ordinary user's rights decides, so that each attack is possible without a sandbox."""
PRIVILEGED = {"write by the root of process 1", "a device"}
"""Of those, what needs more."""
NAMES = {promises.NAMESPACES: "namespaces", promises.GUARD: "guard", promises.BUBBLEWRAP: "bubblewrap"}
"""What `--backend` calls them."""
BRIEF = ("reads", "git", "keys", "supervision")
STRICT = (
    "bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib"
    " --symlink usr/lib64 /lib64 --ro-bind /etc /etc --proc /proc --dev /dev --tmpfs /tmp --bind {tree} {tree}"
    " --bind {main}/.git {main}/.git --unshare-all --die-with-parent --"
)


@pytest.fixture(params=["root", "user"])
def tester(request: pytest.FixtureRequest, user: Who, public_dir: Path) -> Who:
    """Who runs the self-test."""
    if request.param == "user":
        return user
    if os.geteuid() != 0:
        pytest.skip("nobody else can be played")
    return identity.root(public_dir / "home-of-root")


@pytest.fixture(autouse=True)
def _nothing_stays(user: Who, public_dir: Path) -> Iterator[None]:
    """No scratch area stays."""
    yield
    for home in (user.home, public_dir / "home-of-root"):
        assert [*home.glob(".cache/paddock-selftest*")] == []


def called(who: Who, installed: Installed, *words: str, seconds: float = 580) -> "subprocess.CompletedProcess[str]":
    """Runs the verb."""
    return who.run([installed.paddock, "selftest", *words], cwd=who.home, timeout=seconds)


def tried(who: Who, installed: Installed, *words: str, concerns: Sequence[str]) -> dict[str, Any]:
    """What it says."""
    of = (word for name in concerns for word in ("--concern", name))
    return said(called(who, installed, "--json", *words, *of, seconds=1_400))


def said(ended: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The document, which its exit status agrees with."""
    assert ended.returncode in (0, 1), ended
    document: dict[str, Any] = json.loads(ended.stdout)
    assert document["whole"] == all(each["whole"] for each in document["sandboxes"]) == (ended.returncode == 0)
    return document


def names(sandbox: dict[str, Any], verdict: str) -> set[str]:
    """The trials with a verdict."""
    return {f"{trial['concern']}: {trial['name']}" for trial in sandbox["trials"] if trial["verdict"] == verdict}


@pytest.mark.timeout(1_500)
def test_nothing_escapes_and_everything_works(tester: Who, installed: Installed) -> None:
    """All attacks on each backend as an ordinary user; as root on the default one those that root has means for.

    What root may do on the other backends is attacked promise by promise (`test_promises_*`).
    """
    root = not tester.uid
    concerns = OTHER_FOR_ROOT if root else [name for name in catalogue.concerns() if name != BORDER]
    backends = promises.BACKENDS[: 1 if root else None]
    for backend in backends:
        need_backend(backend)
    words = (word for name in backends for word in ("--backend", NAMES[name]))
    _whole(tried(tester, installed, *words, concerns=concerns), backends, least=[100 if root else 150] * len(backends))


def test_nothing_escapes_at_the_border(user: Who, installed: Installed, public_dir: Path) -> None:
    """What its user does next with what an agent has prepared.

    Paddock's own jails do it, whatever held the agent; and a tree that was held by bubblewrap is left as one that was
    in namespaces: both mount over its `.git`.
    """
    need_backend(promises.GUARD)
    client, place = public_dir / "client.py", public_dir / "socket"
    client.write_text(CLIENT)
    words: list[str | Path] = [installed.python, "-I", "-c", CHOSEN, client, place, *GUARDED]
    with socket.socket(socket.AF_UNIX) as listening, open(public_dir / "said", "w+") as output:
        listening.bind(str(place))
        place.chmod(0o777)
        listening.listen()
        listening.settimeout(0.5)
        process = subprocess.Popen(
            user.command(words), cwd=user.home, env=user.environment(), stdout=output, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None:
            with suppress(TimeoutError), listening.accept()[0] as peer, peer.makefile("r") as asked:
                given, cwd, env = ast.literal_eval(asked.readline())
                done = warmed.run(user, installed.python, given, cwd=cwd, env=env)
                out, err = (text.encode(errors="surrogateescape") for text in (done.stdout, done.stderr))
                peer.sendall(b"%d %d %b" % (done.returncode, len(out), out + err))
        output.seek(0)
        ended = subprocess.CompletedProcess(words, process.returncode, output.read(), process.communicate()[1])
    whole, guarded = _whole(said(ended), (promises.NAMESPACES, promises.GUARD), least=(25, 9))
    assert len(whole["trials"]) == sum(trial.concern == BORDER for trial in catalogue.trials())
    assert sorted(trial["name"] for trial in guarded["trials"]) == sorted(GUARDED)


def _whole(document: dict[str, Any], backends: Sequence[str], *, least: Sequence[int]) -> list[dict[str, Any]]:
    """The sandboxes of a document, one for each backend, where nothing escaped and all works."""
    sandboxes: list[dict[str, Any]] = document["sandboxes"]
    assert [each["name"] for each in sandboxes] == list(backends)
    for sandbox, held in zip(sandboxes, least, strict=True):
        wrong = [trial for trial in sandbox["trials"] if trial["verdict"] in ("ESCAPED", "BROKEN")]
        assert wrong == [], sandbox["name"]
        exempt = {trial["concern"] for trial in sandbox["trials"] if trial["verdict"] == "not promised"}
        allowed = {"hand-off files", "processes", "sockets", "network"} if sandbox["name"] == promises.GUARD else set()
        assert exempt <= allowed
        assert sandbox["attacks"]["held"] > held
        # What another trial in the same scratch area is in the way of would count as held, or be left out, everywhere.
        untried = [trial for trial in sandbox["trials"] if trial["verdict"] == "not possible here"]
        sure = {each["name"] for each in untried if each["kind"] == catalogue.CONTROL or each["concern"] in EVERYWHERE}
        assert sure <= PRIVILEGED
        assert sandbox["backend"] == sandbox["name"]
    return sandboxes


def test_what_other_sandboxes_let_through_is_seen(user: Who, installed: Installed) -> None:
    """Without one the attacks have their effects, so none is held because it could not have worked.

    Of bubblewrap one that shows everything, and one that shows the worktree and the repository that git needs.
    """
    need("bubblewrap")
    prefixes = (word for line in ("", "bwrap --dev-bind / / --", STRICT) for word in ("--prefix", line))
    bare, loose, strict = tried(user, installed, *prefixes, concerns=BRIEF)["sandboxes"]
    assert bare["name"] == "no sandbox"
    assert bare["attacks"]["held"] == 0
    assert names(bare, "ESCAPED") >= {
        "reads: an SSH key", "git: a hook of the repository", "git: move the main branch",
        "keys: the key in the environment", "supervision: a daemon, when the launcher is killed",
    }  # fmt: skip
    assert names(bare, "BROKEN") == set()
    assert names(loose, "ESCAPED") >= {
        "reads: an SSH key", "git: a hook of the repository", "keys: the key in the environment",
        "supervision: a session of its own",
    }  # fmt: skip
    assert strict["name"].startswith("bwrap --ro-bind")
    assert names(strict, "held") >= {"reads: an SSH key", "supervision: a session of its own"}
    assert names(strict, "ESCAPED") >= {"git: a hook of the repository", "git: the token in the repository's settings"}


def test_in_words_and_as_a_page(user: Who, installed: Installed) -> None:
    """A table by concern and a line for each sandbox; the page has every attack, and no markup of anybody's."""
    page = user.home / "report.html"
    ended = called(user, installed, "--prefix", "", "--concern", "resolver", "--html", str(page), "--verbose")
    assert ended.returncode == 1, ended
    assert "CONCERN" in ended.stdout
    assert "no sandbox: attacks 0 held, " in ended.stdout
    assert "ESCAPED" in ended.stdout
    content = page.read_text()
    page.unlink()
    assert content.startswith("<!doctype html>")
    assert "a question by TCP" in content
    assert "<script" not in content


def test_what_a_killed_one_left_goes_with_the_next(user: Who, installed: Installed) -> None:
    """Wherever it lay; and what another one, which is at work, has there stays."""
    process = user.start([installed.paddock, "selftest", "--concern", "reads"], cwd=user.home)
    scratch, deadline = user.home / ".cache/paddock-selftest", time.monotonic() + 60
    while not (name := "".join(each.name for each in scratch.glob("*"))) or not left(name):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert called(user, installed, "--prefix", "", "--concern", "resolver").returncode == 1
    assert process.poll() is None
    assert (scratch / name).exists()
    process.kill()
    process.communicate()
    assert left(name)
    deadline = time.monotonic() + 30
    while scratch.exists():  # a child of it may live a little longer
        assert time.monotonic() < deadline
        assert called(user, installed, "--prefix", "", "--concern", "resolver").returncode == 1
    assert left(name) == []


def left(name: str) -> list[Path]:
    """What lies in /tmp and in shared memory of the self-test whose directory has this name."""
    return [path for place in ("/tmp", "/dev/shm") for path in Path(place).glob(f"paddock-selftest-{name}-*")]


def test_bad_words_are_refused(user: Who, installed: Installed) -> None:
    """Unknown concerns, sandboxes and backends; a sandbox that does not start is an error, not a result."""
    for words, reason in (
        (("--concern", "nothing"), "is not a concern"),
        (("--backend", "nothing"), "is one of"),
        (("--prefix", "nonexistent-sandbox --"), "there is no nonexistent-sandbox"),
        (("--prefix", "'"), "--prefix"),
        (("--prefix", "false", "--concern", "resolver"), "did not start"),
    ):
        ended = called(user, installed, *words)
        assert ended.returncode == 125, ended
        assert reason in ended.stderr
        assert ended.stdout == ""


def test_the_catalogue_is_as_large_as_it_says() -> None:
    """Counts of the manual, and no two trials of the same name."""
    every = catalogue.trials()
    kinds = [trial.kind for trial in every]
    assert kinds.count(catalogue.ATTACK) > 300
    assert kinds.count(catalogue.CONTROL) > 60
    assert len({(trial.concern, trial.kind, trial.name) for trial in every}) == len(every)
    for trial in every:
        assert trial.script
        assert not trial.python or compile(trial.script, trial.name, "exec")
        assert not trial.row or trial.row in {row for row, *_ in promises.ROWS}
