"""A further command in a live session is held like the first one, and feels like a command of the caller's."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.conftest import IDENTITIES
from tests.support import paddock as paddocks
from tests.support.identity import AS_A_USER
from tests.support.paddock import EXEC_PATIENCE as PATIENCE
from tests.support.paddock import SPACES, Paddock, Session

OF_A_USER = pytest.mark.parametrize(
    ("name_of_who", "shared_session"), [(IDENTITIES[-1], "namespaces")], indirect=["shared_session"]
)
"""Of a test of words, which knows no difference between identities and backends."""


@pytest.fixture
def session(shared_session: Session) -> Session:
    """One of the sessions that live as long as the tests of this file."""
    return shared_session


def status_of(name: str, text: str) -> str:
    """One line of /proc/PID/status, as given."""
    return next(line for line in text.splitlines() if line.startswith(name)).partition(":")[2].strip()


# The same jail


def test_it_sees_what_the_first_command_sees(session: Session) -> None:
    """Files of the worktree are there, files outside are not: no matter who may read them otherwise."""
    outside = session.paddock.place / "outside"
    outside.write_text("secret")
    session.paddock.who.give(outside)
    ended = session.run("sh", "-c", f"cat file && ! cat {outside}")
    assert (ended.returncode, ended.stdout) == (0, "content\n")
    assert "Permission denied" in ended.stderr or "No such file" in ended.stderr


def test_it_is_held_as_the_first_command_is(session: Session) -> None:
    """Every namespace is the first command's own, and so are no_new_privs, each set of capabilities, the one seccomp
    filter, and the resource limits.
    """
    ended = session.run("sh", "-c", f"{SPACES}; ulimit -n; ulimit -Hn; cat /proc/self/status")
    spaces, limits, further = ended.stdout.splitlines()[:7], ended.stdout.splitlines()[7:9], ended.stdout
    assert spaces == (session.paddock.worktree / "first.spaces").read_text().splitlines()
    assert limits == ["77", "77"]
    first = (session.paddock.worktree / "first.status").read_text()
    for name in ("NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Uid"):
        assert status_of(name, further) == status_of(name, first), name
    assert status_of("NoNewPrivs", further) == "1"
    assert int(status_of("CapEff", further), 16) == 0


def test_its_writes_end_where_the_first_commands_do(session: Session) -> None:
    """The worktree can be written; what lies beside it cannot, and neither can its metadata."""
    outside = session.paddock.place / "outside"
    outside.write_text("")
    session.paddock.who.give(outside)
    ended = session.run("sh", "-c", f"echo more >new && ! echo x >{outside} && ! chmod 777 {outside}")
    assert ended.returncode == 0, ended.stderr
    assert (session.paddock.worktree / "new").read_text() == "more\n"
    assert outside.stat().st_mode & 0o777 != 0o777


def test_metadata_of_the_worktree_can_be_changed(session: Session) -> None:
    """chmod(2) inside works in both backends: without namespaces by a guard of this command's own."""
    path = session.paddock.worktree / "changed"
    path.touch()
    session.paddock.who.give(path)
    assert session.run("chmod", "600", "changed").returncode == 0
    assert path.stat().st_mode & 0o777 == 0o600


@OF_A_USER
def test_its_environment_is_the_sessions(session: Session) -> None:
    """Variables of the client do not come along, except those that it names."""
    words = session.words("env", options=("--env", "SET=here", "--env", "PASSED", "--env=ABSENT"))
    env = {"PASSED": "by name", "SECRET": "stays"}
    ended = session.paddock.who.run(words, cwd=session.paddock.worktree, env=env)
    lines = set(ended.stdout.splitlines())
    assert {"GIVEN=at start", "SET=here", "PASSED=by name"} <= lines
    assert not any(line.startswith(("SECRET=", "ABSENT=")) for line in lines)


# Where and what


@OF_A_USER
def test_it_starts_in_the_clients_directory(session: Session) -> None:
    """Inside the worktree the client's own directory counts, elsewhere the session's, and --cwd names another."""
    below = session.paddock.worktree / "below"
    below.mkdir()
    session.paddock.who.give(below)
    assert session.run("pwd", cwd=below).stdout == f"{below}\n"
    assert session.run("pwd", cwd=session.paddock.place).stdout == f"{session.paddock.worktree}\n"
    assert session.run("pwd", options=("--cwd", "below")).stdout == f"{below}\n"


@OF_A_USER
def test_a_directory_that_is_none_of_the_worktrees_is_refused(session: Session) -> None:
    """--cwd reaches no further than the worktree, by a symbolic link neither; a name that leads nowhere is an error."""
    (session.paddock.worktree / "link").symlink_to("/etc")
    outside = dict.fromkeys(("/", "..", "/nowhere", "link"), "directory-outside")
    wanted = outside | {"nowhere": "directory-unreachable"}
    refused = {
        name: session.paddock.refused("exec", session.name, "--cwd", name, "--", "pwd").reference for name in wanted
    }
    assert refused == wanted


@OF_A_USER
def test_a_command_that_cannot_be_started_ends_with_126_or_127(session: Session) -> None:
    """A name without a file and a path without one are told apart from what is there and cannot be executed."""
    for word, status, reference in (
        ("nosuch", 127, "command-not-found"), ("./nosuch", 127, "command-not-found"), ("", 127, "command-not-found"),
        ("./file", 126, "command-not-executable"),
    ):  # fmt: skip
        said = session.paddock.refused("exec", session.name, "--", word, status=status)
        assert (word, said.reference) == (word, reference)


def test_a_command_outside_of_the_jail_is_not_found_in_it(session: Session) -> None:
    """The search goes through PATH as the jail shows it: what is not granted ends it no more than what is absent."""
    tools = session.paddock.place / "tools"
    tools.mkdir()
    for name in ("true", "only-here"):
        shutil.copy("/bin/false", tools / name)
    session.paddock.who.give(tools)
    path = f"PATH={tools}:/usr/bin:/bin"
    assert session.run("true", options=("--env", path)).returncode == 0
    assert session.run("only-here", options=("--env", path)).returncode in (126, 127)


# Streams, signals, status


@OF_A_USER
def test_streams_are_the_callers_own(session: Session) -> None:
    """Pipes and files cross as they are, with any number of bytes, and standard error apart."""
    text = "0123456789abcdef" * 65536
    ended = session.run("sh", "-c", "cat; echo aside >&2", stdin=text)
    assert (ended.returncode, ended.stderr) == (0, "aside\n")
    assert ended.stdout == text


def test_a_file_outside_can_be_read_when_the_caller_opened_it(session: Session) -> None:
    """A redirection is the caller's choice, as it is for `paddock run`."""
    outside = session.paddock.place / "outside"
    outside.write_text("given")
    session.paddock.who.give(outside)
    line = f"paddock exec {session.name} -- cat <{outside} >{session.paddock.place}/copy"
    assert session.paddock.shell(line).returncode == 0
    assert (session.paddock.place / "copy").read_text() == "given"


@OF_A_USER
def test_closed_streams_do_no_harm(session: Session) -> None:
    """A stream that the caller has closed is empty for the command."""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        ended = session.paddock.shell(f"paddock exec {session.name} -- true {closed}")
        assert ended.returncode == 0, (closed, ended.stderr)


@OF_A_USER
def test_the_status_is_the_commands(session: Session) -> None:
    """An exit status passes through, and death by signal N is 128+N."""
    for line, status in (("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)):
        assert (line, session.run("sh", "-c", line).returncode) == (line, status)


TRAPPING = "trap 'echo caught; exit 9' {0}; echo ready; while :; do sleep 0.05; done"


@OF_A_USER
def test_signals_pass_through(session: Session) -> None:
    """What is sent to the client reaches the command."""
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM"):
        process = session.start("bash", "-c", TRAPPING.format(name))
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert (name, process.stdout.readline()) == (name, b"caught\n")
        process.communicate(timeout=PATIENCE)
        assert (name, process.returncode) == (name, 9)


@OF_A_USER
def test_a_stopped_command_stops_no_client_without_a_terminal(session: Session) -> None:
    """What continues the command is enough: the client has waited, and ends with its status."""
    script = "(until [ -e on ]; do sleep 0.05; kill -CONT $$; done) & kill -STOP $$; touch on; exit 7"
    words = ["setsid", "--wait", *session.words("sh", "-c", script)]
    assert session.paddock.who.run(words, cwd=session.paddock.worktree, env=session.paddock.env).returncode == 7


@OF_A_USER
def test_arguments_come_through_unchanged(session: Session) -> None:
    """Empty words, newlines, options and bytes that are no UTF-8 are the command's."""
    words = ("", "a\nb", "--env", "-x", "\udcff", "=", "*")
    ended = session.run("printf", "<%s>", *words)
    assert ended.stdout == "".join(f"<{word}>" for word in words)


@OF_A_USER
def test_a_long_command_line_passes(session: Session) -> None:
    """Arguments far beyond a socket's buffer arrive as they are."""
    words = ["a" * 120_000] * 12
    ended = session.run("sh", "-c", 'echo "$# ${#1}"', "sh", *words)
    assert ended.stdout == "12 120000\n", ended.stderr


# Sessions


@OF_A_USER
def test_the_list_names_what_is_live(session: Session) -> None:
    """`--list` shows the session with its worktree and command, as text and as JSON."""
    shown = session.paddock.call("exec", "--list")
    heading, row = shown.stdout.splitlines()
    assert heading.split() == ["SESSION", "WORKTREE", "COMMAND"]
    assert row.split() == [session.name, str(session.paddock.worktree), "sh"]
    (entry,) = json.loads(session.paddock.call("exec", "--list", "--json").stdout)
    assert (entry["session"], entry["worktree"], entry["command"]) == (
        session.name,
        str(session.paddock.worktree),
        "sh",
    )


@OF_A_USER
def test_an_unknown_session_is_refused_with_the_known_ones(session: Session) -> None:
    """The error names the sessions that there are."""
    said = session.paddock.refused("exec", "nosuch", "--", "true")
    assert said.reference == "session-unknown"
    assert session.name in said.text


@AS_A_USER
def test_a_dead_session_is_unknown(paddock: Paddock) -> None:
    """What a killed launcher left behind is no session; and to have none is no error."""
    assert paddock.call("exec", "--list", "--json").stdout == "[]\n"
    session = Session(paddock)
    with session:
        session.process.kill()
        session.process.wait(PATIENCE)
        assert session.directory.exists()
        assert paddock.refused("exec", session.name, "--", "true").reference == "session-unknown"
        assert paddock.call("exec", "--list").stdout == "no session is running\n"
    assert paddock.run("--", "true").returncode == 0  # takes the remains away


@OF_A_USER
def test_another_users_session_is_refused(session: Session) -> None:
    """Only who started a session may run something in it: root is nobody special, all others cannot come near."""
    assert session.directory.stat().st_mode & 0o777 == 0o700
    assert (session.directory / "control").stat().st_mode & 0o077 == 0
    ended = subprocess.run(
        session.words("true"), env=session.paddock.who.environment(), capture_output=True, text=True, check=False
    )
    if os.geteuid() == session.paddock.who.uid:
        assert ended.returncode == 0
    else:
        assert ended.returncode == 125
        assert paddocks.said(ended.stderr).reference == "session-not-ours"


def test_wrong_words_are_refused(user_paddock: Paddock) -> None:
    """A command line that means nothing gives usage, not a traceback; `--help` names the options, with examples."""
    for words in (
        (), ("name",), ("--json",), ("--list", "name"), ("name", "--rw", "x", "--", "true"), ("../x", "--", "true"),
    ):  # fmt: skip
        assert user_paddock.refused("exec", *words).reference in ("usage", "session-name"), words
    shown = user_paddock.call("exec", "--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("--env", "--cwd", "--list", "--json", "examples:"))
