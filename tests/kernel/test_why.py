"""`paddock why` says what a jail really does, which layer does it, and what would change it."""

import json
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from policy import promises
from tests.conftest import IDENTITIES
from tests.support.features import need_backend
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES


def why(paddock: Paddock, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What `paddock why WORDS... --json` prints; its exit status goes with what is allowed."""
    return answered(paddock.call("why", *words, "--json", env=env), words[0])


def why_each(paddock: Paddock, *questions: Sequence[str], env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The same for each of these questions, by children of one process."""
    ended = paddock.each(*(["why", *words, "--json"] for words in questions), env=env)
    return [answered(answer, words[0]) for answer, words in zip(ended, questions, strict=True)]


def answered(ended: "subprocess.CompletedProcess[str]", subject: str) -> dict[str, Any]:
    """The document that it printed about a subject."""
    document: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == (0 if document["allowed"] else 1), ended
    assert document["asked"] == subject
    return document


@AS_A_USER
def test_a_denied_path_comes_with_what_allows_it(paddock: Paddock) -> None:
    """The option that it names does allow it, and the answer then says so."""
    secret = paddock.place / "a secret"
    secret.write_text("content")
    paddock.who.give(secret)
    before = why(paddock, str(secret))
    assert (before["kind"], before["allowed"]) == ("path", [])
    assert before["layer"]
    assert before["allow"]["read"]["flag"] == f"--ro '{secret}'"
    assert before["allow"]["read"]["toml"] == f'[filesystem]\nread = ["{secret}"]'
    assert before["allow"]["read"]["risk"]
    after = why(paddock, str(secret), "--ro", str(secret))
    assert "read" in after["allowed"]
    assert set(after["allow"]) == {"write"}
    assert paddock.run("--", "cat", str(secret)).returncode == 1
    assert paddock.run("--ro", str(secret), "--", "cat", str(secret)).stdout == "content"


@AS_A_USER
def test_the_layer_is_the_one_that_answers(paddock: Paddock) -> None:
    """Where namespaces show nothing it is ENOENT; where Landlock judges, and where a mask lies, EACCES."""
    outside, denied, below = paddock.place / "outside", paddock.worktree / "denied", paddock.worktree / "under/denied"
    below.parent.mkdir()
    for path in (outside, denied, below):
        path.write_text("content")
    paddock.who.give(paddock.place)
    words = ("--deny", str(denied), "--deny", str(below.parent), "--freeze-root")
    environments: list[dict[str, str]] = [{}, {"PADDOCK_NO_USERNS": "1"}]
    for env in environments:
        paths = (outside, denied, below)
        documents = why_each(paddock, *([str(path), *words] for path in paths), env=env)
        for path, document in zip(paths, documents, strict=True):
            layer = document["layer"]
            said = paddock.run(*words, "--", "cat", str(path), env=env).stderr
            expected = "No such file" if "ENOENT" in layer else "Permission denied"
            assert expected in said
            assert ("ENOENT" in layer) != ("EACCES" in layer)
            assert ("as modified" in document["git"]) == (path != outside)


_LOOK = r"""
import errno, os, socket, sys
def attempt(action):
    try: action()
    except OSError as error: return errno.errorcode[error.errno]
    return "ok"
for word in sys.argv[1:]:
    host, _, port = word.rpartition(":")
    if host:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        print(attempt(lambda: socket.socket(kind).connect((host.strip("[]"), int(port)))))
    elif os.path.isdir(word):
        new = word + "/.made-by-a-test"
        print(attempt(lambda: os.listdir(word)), attempt(lambda: os.rmdir(os.mkdir(new) or new)))
    else:
        print(*(attempt(lambda: os.close(os.open(word, mode))) for mode in (os.O_RDONLY, os.O_WRONLY)))
"""


def looked(paddock: Paddock, subjects: list[str], *words: str, env: dict[str, str]) -> list[list[str]]:
    """What becomes of reading and of writing each path, or of connecting to each HOST:PORT, in a jail."""
    ended = paddock.run(*words, "--", "/usr/bin/python3", "-c", _LOOK, *subjects, env=env)
    assert ended.returncode == 0, ended.stderr
    return [line.split() for line in ended.stdout.splitlines()]


@pytest.fixture(params=SWITCHES)
def backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Its name, and the variables and options that select it."""
    name: str = request.param
    need_backend(name)
    env, words = SWITCHES[name]
    return name, env, words


@pytest.fixture
def outside(paddock: Paddock) -> Iterator[dict[str, str]]:
    """Files that the user can read and write, in places of which a jail may have its own."""
    paths = {
        "secret": str(paddock.place / "secret"),
        "tmp": f"/tmp/paddock-why-{os.getpid()}",
        "shm": f"/dev/shm/paddock-why-{os.getpid()}",
        "home": f"{paddock.who.home}/.cache/tool/file",
    }
    for path in map(Path, paths.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
        paddock.who.give(path)
    paddock.who.give(paddock.who.home / ".cache")
    yield paths
    for path in map(Path, paths.values()):
        path.unlink()


@pytest.mark.parametrize(
    ("who", "backend"),
    [*((IDENTITIES[-1], name) for name in SWITCHES), (IDENTITIES[0], promises.GUARD)],
    indirect=True,
)
def test_of_what_a_jail_shows_the_answer_is_what_a_command_sees(
    paddock: Paddock, outside: dict[str, str], backend: tuple[str, dict[str, str], tuple[str, ...]]
) -> None:
    """Not there, its own, read-only or open: the errno is one that is named, and the option that is named helps."""
    name, env, words = backend
    seen = promises.has_mounts(name)
    absent, closed, way = ("ENOENT", "ENOENT"), ("EACCES", "EACCES"), ("ok", "EROFS")
    own, home = ("ok", "ok"), paddock.run(*words, "--", "sh", "-c", "echo $HOME", env=env).stdout.strip()
    rows: dict[str, tuple[tuple[str, str], tuple[str, str], str]] = {
        # what a view shows, what Landlock alone does, whether an option opens it ("" for no need)
        outside["secret"]: (absent, closed, "option"),
        outside["home"]: (absent, closed, "option"),
        outside["tmp"]: (absent, closed, "option"),
        outside["shm"]: (absent, own, "nothing" if seen else ""),
        "/dev/shm": (own, own, ""),
        "/dev": (way, closed, "nothing" if seen else ""),
        "/sys": (way, closed, "option"),
        "/proc/sys/kernel/hostname": (way, ("ok", "EACCES"), "nothing" if seen else ""),
        "/etc/hostname": (way, ("ok", "EACCES"), ""),
        str(paddock.main): (way, closed, "option"),
        str(paddock.main / ".git"): (way, ("ok", "EACCES"), "option" if seen else ""),
        str(paddock.main / ".git/config"): (absent, ("ok", "EACCES"), "option" if seen else ""),
        str(paddock.worktree / ".git"): (way, own, ""),
        str(paddock.worktree): (own, own, ""),
        str(paddock.state): (way, closed, "nothing"),
        home: (own, own, ""),
    }
    documents = why_each(paddock, *([path, *words] for path in rows), env=env)
    options: dict[str, list[str]] = {}
    for path, now, document in zip(rows, looked(paddock, list(rows), *words, env=env), documents, strict=True):
        expected, allow = rows[path][0 if seen else 1], rows[path][2]
        system = paddock.who.uid != 0 and path.startswith(("/etc/", "/proc/"))  # its mode comes first there
        assert now[:1] == [expected[0]], (path, now)
        # A directory on the way through a temporary one is a part of that.
        passed = expected == way and path.startswith("/tmp/") and path != f"{paddock.worktree}/.git"
        assert passed or now[1] == expected[1] or (system and now[1] == "EACCES"), (path, now)
        assert passed or ("write" in document["allowed"]) == (now[1] == "ok"), (path, document)
        assert ("read" in document["allowed"]) == (now[0] == "ok") or "jail's own" in document["layer"], document
        for outcome in expected:
            assert passed or outcome == "ok" or outcome in document["layer"] or path == "/dev", (
                path,
                document["layer"],
            )
        answers = document["allow"]
        if allow == "nothing":
            assert not any(answer["flag"] for answer in answers.values()), answers
            assert all("no option does" in answer["note"] for answer in answers.values()), answers
        elif allow and path != "/sys":
            options[path] = shlex.split(answers["read"]["flag"])
    main = str(paddock.main)
    within = [[path] for path in options if path.startswith(f"{main}/")]  # what opens one may open the other
    for group in filter(None, [[path for path in options if not path.startswith(f"{main}/")], *within]):
        given = [word for path in group for word in options[path]]
        assert [now[0] for now in looked(paddock, group, *words, *given, env=env)] == ["ok"] * len(group), given
    assert (
        "~/.cache/tool/file is another file in the jail" in paddock.call("why", outside["home"], *words, env=env).stdout
    )
    assert "another file" not in paddock.call("why", outside["secret"], *words, env=env).stdout


@AS_A_USER
@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.GUARD], indirect=True)
def test_of_a_port_the_answer_is_what_a_command_meets(
    paddock: Paddock, backend: tuple[str, dict[str, str], tuple[str, ...]]
) -> None:
    """With the network closed, and past a proxy: the errno that is named, and what it would open."""
    _, env, words = backend
    with socket.create_server(("127.0.0.1", 0)) as service:
        here = f"127.0.0.1:{service.getsockname()[1]}"
        risks = {here: "this machine", "[::1]:5432": "this machine", "10.0.0.5:22": "your own network",
                 "169.254.169.254:80": "credentials", "192.0.2.7:443": ""}  # fmt: skip
        for net in ("none", "proxy"):
            came = looked(paddock, [*risks], *words, "--net", net, env=env)
            documents = why_each(paddock, *([subject, *words, "--net", net] for subject in risks), env=env)
            for subject, [now], document in zip(risks, came, documents, strict=True):
                assert document["allowed"] is False
                assert f"({now})" in document["layer"], (net, subject, now, document["layer"])
                assert risks[subject] in document["allow"]["risk"]
                local = risks[subject] == "this machine"
                assert ("--reach" in document["allow"]["flag"]) == local
                only = not local and backend[0] == promises.GUARD  # else an address that a rule names is reached, too
                assert ("a host name works" in document["allow"]["note"]) == only
    assert why(paddock, "169.254.169.254", *words, "--net", "open", env=env)["allowed"]


@AS_A_USER
def test_a_process_is_asked_about_as_the_command_sees_it(paddock: Paddock) -> None:
    """Of /proc/self it is the command's own; of another process more is closed than a grant says."""
    assert why(paddock, "/proc/self/environ")["path"] == "/proc/self/environ"
    for env in ({}, {"PADDOCK_NO_USERNS": "1"}):
        assert looked(paddock, ["/proc/1/environ"], env=env)[0][0] == "EACCES"
        assert "jail's own init, are inaccessible (EACCES)" in paddock.call("why", "/proc/1/environ", env=env).stdout


@AS_A_USER
def test_hosts(paddock: Paddock) -> None:
    """A word that is no file, and can be a host, is one."""
    cases: tuple[tuple[tuple[str, ...], bool, str], ...] = (
        (("example.com",), False, "--net proxy --allow-domain example.com:443"),
        (("example.com:80",), False, "--net proxy --allow-domain example.com:80"),
        (("192.0.2.7",), False, "--net proxy --allow-domain 192.0.2.7:443"),
        (("[2001:db8::1]:8080",), False, "--net proxy --allow-domain '[2001:db8::1]:8080'"),
        (("example.com", "--net", "open"), True, ""),
        (("http://example.com/x",), False, "--net proxy --allow-domain example.com:80"),
        (("https://user@[2001:db8::1]:8080/",), False, "--net proxy --allow-domain '[2001:db8::1]:8080'"),
        (("127.0.0.1:18432",), False, "--net proxy --reach 18432"),
        (("[::1]:18432", "--net", "proxy"), False, "--reach '[::1]:18432'"),
        (("127.0.0.1:18432", "--reach", "18432"), True, ""),
        (("localhost:18432", "--reach", "18432"), True, ""),
        (("127.0.0.1:18433", "--reach", "18432"), False, "--reach 18433"),
        (("127.0.0.1:18434", "--inject", "T=http://localhost:18434"), False, ""),
    )
    documents = why_each(paddock, *(words for words, _, _ in cases))
    for (words, allowed, flag), document in zip(cases, documents, strict=True):
        answer = (document["kind"], document["allowed"], document["allow"]["flag"])
        assert (words, *answer) == (words, "host", allowed, flag)
    assert document["reason"] == "it is reached only by the phantom in T, at the URL in T_URL"
    mirror = {"PIP_INDEX_URL": "http://127.0.0.1:18435/simple"}
    assert why(paddock, "127.0.0.1:18435", env=mirror)["allow"]["flag"] == "--allow-domain @python"
    assert why(paddock, "127.0.0.1:18435", "--allow-domain", "@python", env=mirror)["allowed"]
    assert "--reach 18436" in why(paddock, "127.0.0.1:18436", env=mirror)["allow"]["flag"]


@AS_A_USER
def test_where_no_command_would_start_there_is_an_answer_that_says_so(paddock: Paddock) -> None:
    """A main checkout without mounts: the answer holds with the option that it names, and a launch is refused."""
    secret, env = paddock.place / "secret", {"PADDOCK_NO_USERNS": "1"}
    secret.write_text("content")
    paddock.who.give(secret)
    for words in (("why", secret), ("why", "example.com"), ("explain", secret)):
        ended = paddock.call(*words, cwd=paddock.main, env=env)
        assert (ended.returncode, ended.stdout.count("with --freeze-root, without which no")) == (1, 1), ended
        assert "paddock run --new" in ended.stdout
        document = json.loads(paddock.call(*words, "--json", cwd=paddock.main, env=env).stdout)
        assert document["refused"]["errorType"] == "exception-in-writable-tree"
    start = ("run", "--ro", secret, "--", "cat", secret)
    assert paddock.refused(*start, cwd=paddock.main, env=env).reference == "exception-in-writable-tree"
    assert paddock.call("run", "--freeze-root", *start[1:], cwd=paddock.main, env=env).stdout == "content"
    assert why(paddock, str(secret), env=env)["refused"] is None


@AS_A_USER
@pytest.mark.parametrize("env", [{}, {"PADDOCK_NO_USERNS": "1"}], ids=["namespaces", "guard"])
def test_the_option_for_the_loopback_leads_there(paddock: Paddock, env: dict[str, str]) -> None:
    """Without it the service is out of reach; with it, its words come through."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(60)
        port = service.getsockname()[1]
        flag = why(paddock, f"127.0.0.1:{port}", env=env)["allow"]["flag"]
        command = ("--", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port} && head -c5 <&3")
        assert paddock.run(*command, env=env).returncode != 0

        def serve() -> None:
            client, _ = service.accept()
            with client:
                client.sendall(b"hello")

        server = threading.Thread(target=serve)
        server.start()
        ended = paddock.run(*flag.split(), *command, env=env)
        server.join()
    assert (ended.returncode, ended.stdout) == (0, "hello"), ended.stderr


@AS_A_USER
def test_the_rule_and_its_source_are_named(paddock: Paddock) -> None:
    """Of a list of hosts, both the host and the list; of a denial, the option."""
    document = why(paddock, "api.github.com", "--allow-domain", "@github")
    assert (document["rule"].partition(":")[0], document["source"]) == ("api.github.com", "--allow-domain @github")
    words = ("github.com", "--allow-domain", "@github", "--deny-domain", "github.com")
    denied = why(paddock, *words)
    assert (denied["allowed"], denied["rule"], denied["source"]) == (False, "github.com", "--deny-domain")
    assert "  decided by  github.com: --deny-domain\n" in paddock.call("why", *words).stdout


@AS_A_USER
def test_the_loopback_behind_the_proxy_is_not_for_everybody(paddock: Paddock) -> None:
    """Where hosts are not reached by name: clients with NO_PROXY in their environment go elsewhere, which is said."""
    words = ("localhost:18432", "--allow-domain", "localhost:18432")
    by_name = why(paddock, *words)
    assert (by_name["allowed"], by_name["allow"]["note"]) == (True, "")
    document = why(paddock, *words, "--git", "readonly", env={"PADDOCK_NO_USERNS": "1"})
    assert document["allowed"]
    assert "NO_PROXY" in document["allow"]["note"]
    assert "--reach 127.0.0.1:18432" in document["allow"]["note"]


@AS_A_USER
def test_what_does_not_exist_cannot_be_granted(paddock: Paddock) -> None:
    """The option that a run would refuse comes with what has to be done first."""
    document = why(paddock, "/nosuch/x")
    assert "does not exist" in document["allow"]["read"]["note"]
    assert "does not exist" in paddock.call("explain", "/nosuch/x").stdout
    assert paddock.refused("run", "--ro", "/nosuch/x", "--", "true").reference
    assert "does not exist" not in paddock.call("explain", str(paddock.main)).stdout


@AS_A_USER
def test_the_shared_temporary_directory(paddock: Paddock) -> None:
    """Where a jail has none of its own, TMPDIR is named beside the option."""
    for asked in ("/tmp", "/tmp/nonexistent"):
        document = why(paddock, asked, env={"PADDOCK_NO_USERNS": "1"})
        assert "$TMPDIR" in document["allow"]["write"]["note"]
    assert "$TMPDIR" in paddock.call("why", "/tmp", env={"PADDOCK_NO_USERNS": "1"}).stdout


@AS_A_USER
def test_a_file_with_a_hosts_name_is_a_file(paddock: Paddock) -> None:
    """What exists is meant as a path; a slash says so too."""
    assert why(paddock, "example.com")["kind"] == "host"
    assert (
        "a host, because nothing here has this name; ./example.com is a file"
        in paddock.call("why", "example.com").stdout
    )
    assert why(paddock, "./example.com")["kind"] == "path"
    (paddock.worktree / "example.com").write_text("")
    assert why(paddock, "example.com")["kind"] == "path"


@AS_A_USER
def test_what_cannot_be_asked(paddock: Paddock) -> None:
    """Nothing, and two things at a time."""
    assert "there is no PATH or HOST to ask about" in paddock.refused("why").text
    assert "has no valid host" in paddock.refused("why", "http:///x").text
    assert "has no port" in paddock.refused("why", "gopher://example.com/").text
    assert "why takes one PATH or HOST" in paddock.refused("why", "a", "b").text
