"""`paddock learn` on real programmes: with what it proposes they pass, and without any one of its lines they do not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.identity import Who
from tests.support.paddock import Paddock

GUARDED = {"PADDOCK_NO_USERNS": "1"}
IN_NAMESPACES = pytest.mark.parametrize("env", [{}], ids=["namespaces"], indirect=True)
BY_GUARD = pytest.mark.parametrize("env", [GUARDED], ids=["guard"], indirect=True)
"""Of what is made of what was watched: that does not know which backend it was."""

SUITE = """
import json, os, pathlib, unittest
CACHE = pathlib.Path(os.environ["SUITE_HOME"], ".cache", "suite", "v1")
class Cached(unittest.TestCase):
    def test_the_cache(self):
        os.makedirs(CACHE, exist_ok=True)
        (CACHE / "results.json").write_text(json.dumps({"passed": True}))
        self.assertTrue(json.loads((CACHE / "results.json").read_text())["passed"])
    def test_optional_settings(self):
        try:
            open(os.path.join(os.environ["SUITE_HOME"], ".suiterc")).close()
        except OSError:
            pass
"""

SCRIPT = """
const fs = require('fs'), path = require('path');
const shared = require('../shared/lib/index.js');
try { fs.readFileSync('../shared/notes.txt'); } catch (error) { console.log('no notes'); }
fs.mkdirSync('../reports/unit', { recursive: true });
fs.writeFileSync('../reports/unit/result.txt', String(shared.answer));
"""

PROGRAM = '#include "answer.h"\nint main(void) { return ANSWER - 42; }\n'


def learned(paddock: Paddock, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What `paddock learn --json WORDS...` proposes."""
    ended = paddock.call("learn", "--json", *words, env=env)
    assert ended.stdout, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def proposed(document: dict[str, Any]) -> dict[str, str]:
    """Path and key of what is proposed."""
    return {line["path"]: line["key"] for line in document["grants"] if line["standing"] == "proposed"}


def check(paddock: Paddock, command: list[str], env: dict[str, str]) -> dict[str, str]:
    """Learns by trying; then the command passes with the file that was written, and fails without any one of its
    lines. Returns what is proposed."""
    assert paddock.run("--", *command, env=env).returncode != 0
    policy = paddock.place / "policy.toml"
    document = learned(paddock, "--try", "--write", str(policy), "--", *command, env=env)
    assert (document["status"], document["tried"]) == (0, True), document
    assert document["runs"] <= 24
    found = proposed(document)
    assert all(line["risk"] and line["reason"] for line in document["grants"])
    ended = paddock.run("--config", str(policy), "--", *command, env=env)
    assert ended.returncode == 0, (ended.stderr, policy.read_text())
    for left_out in found:
        grants = [word for path, key in found.items() if path != left_out
                  for word in ("--rw" if key == "write" else "--ro", path)]  # fmt: skip
        ended = paddock.run(*grants, "--", *command, env=env)
        assert ended.returncode != 0, f"it passes without {left_out}"
    return found


def by_hand(paddock: Paddock, command: list[str], env: dict[str, str]) -> dict[str, str]:
    """Learns as people do who read each proposal, and add it before they run the command again. Trying all of it is
    left to them: a trial grants nothing of it. Returns what they added.
    """
    tried = learned(paddock, "--try", "--", *command, env=env)
    assert (tried["runs"], proposed(tried)) == (1, {})
    assert "untried" in {line["standing"] for line in tried["grants"]}
    found: dict[str, str] = {}
    grants: list[str] = []
    for _ in range(8):
        document = learned(paddock, *grants, "--", *command, env=env)
        if document["status"] == 0:
            return found
        for line in document["grants"]:
            if line["standing"] == "proposed":
                found[line["path"]] = line["key"]
                grants += ["--rw" if line["key"] == "write" else "--ro", line["path"]]
                if line["prepare"]:
                    Path(line["path"]).mkdir(parents=True)
                    paddock.who.give(paddock.place)
    raise AssertionError(document)


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: what is learned is what a command asks for, whatever its rights are."""
    return user


@pytest.fixture(params=[{}, GUARDED], ids=["namespaces", "guard"])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    """The backend that holds the jail."""
    need("landlock")
    found: dict[str, str] = request.param
    return found


def plant(paddock: Paddock, name: str, text: str) -> Path:
    """A file below the place that holds the worktree."""
    path = paddock.place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    paddock.who.give(paddock.place)
    return path


@IN_NAMESPACES
def test_a_test_suite_that_writes_a_cache_in_a_home(paddock: Paddock, env: dict[str, str]) -> None:
    """One directory for its cache, made beforehand; not the settings it does without."""
    (home := paddock.place / "their-home" / "me").mkdir(parents=True)
    plant(paddock, "one/test_cached.py", SUITE)
    plant(paddock, "their-home/me/.suiterc", "verbose = true")
    plant(paddock, "their-home/me/.cache/another/file", "theirs")
    command = ["/usr/bin/python3", "-B", "-m", "unittest", "-q", "test_cached"]
    found = by_hand(paddock, ["env", f"SUITE_HOME={home}", *command], env)
    assert found[f"{home}/.cache/suite"] == "write"
    assert f"{home}/.suiterc" not in found


@IN_NAMESPACES
def test_node(paddock: Paddock, env: dict[str, str]) -> None:
    """The library beside the worktree for reading, and the reports for writing."""
    if not shutil.which("node", path=paddock.who.path):
        pytest.skip("needs node")
    plant(paddock, "one/test.js", SCRIPT)
    plant(paddock, "shared/lib/index.js", "exports.answer = require('./answer.js');")
    plant(paddock, "shared/lib/answer.js", "module.exports = 42;")
    plant(paddock, "shared/notes.txt", "notes")
    found = by_hand(paddock, ["sh", "-c", "node test.js"], env)
    assert found[f"{paddock.place}/reports"] == "write"
    assert (paddock.place / "reports/unit/result.txt").read_text() == "42"


@BY_GUARD
def test_a_compiler(paddock: Paddock, env: dict[str, str]) -> None:
    """The headers for reading, the directory of the result for writing."""
    if not shutil.which("gcc", path=paddock.who.path):
        pytest.skip("needs gcc")
    plant(paddock, "one/main.c", PROGRAM)
    header = plant(paddock, "include/answer.h", "#define ANSWER 42\n")
    (output := paddock.place / "build").mkdir()
    plant(paddock, "build/keep", "")
    found = by_hand(paddock, ["gcc", "-I../include", "-o", "../build/program", "main.c"], env)
    assert found.pop(str(output)) == "write"
    assert found in ({str(header): "read"}, {str(header.parent): "read"})


@IN_NAMESPACES
def test_caches_that_are_known_are_tried(paddock: Paddock, env: dict[str, str]) -> None:
    """What the command needs of them is proposed, and what makes no difference is not."""
    names = (".cargo/registry/needed", ".npm/_cacache/needed", ".npm/_cacache/other")
    crate, package, other = (plant(paddock, f"stores/{name}", "content") for name in names)
    command = ["sh", "-c", f"echo < {other}; cat {crate} && cat {package}"]
    assert check(paddock, command, env) == {str(crate): "read", str(package): "read"}


@BY_GUARD
def test_nothing_is_tried_that_programmes_start_with_or_that_may_be_secret(
    paddock: Paddock, env: dict[str, str]
) -> None:
    """Under no name: it is in the proposal for the user to add, not made, not written and not read."""
    home = paddock.place / "home-of-theirs"
    packages = plant(paddock, f"{home.name}/venv/lib/site-packages/own.py", "theirs").parent
    names = ("snap/chromium/Default/Cookies", ".cache/evolution/mail/1", "Documents/passwords.kdbx")
    secrets = [plant(paddock, f"{home.name}/{name}", "treasure\n") for name in names]
    scripts = {path: f"cat {path} >> loot" for path in secrets} | {
        home / "bin": f"mkdir {home}/bin && echo evil > {home}/bin/ls",
        packages: f"echo evil > {packages}/x.pth",
    }
    for path, script in scripts.items():
        document = learned(paddock, "--try", "--", "sh", "-ec", script, env=env)
        assert (document["status"] != 0, document["runs"], proposed(document)) == (True, 1, {})
        assert str(path) in {line["path"] for line in document["grants"] if line["standing"] == "untried"}, document
    text = paddock.call("learn", "--try", "--", "sh", "-ec", script, env=env)
    assert f'\n#   write: "{packages}"' in text.stdout
    assert f"--rw {packages}" in text.stderr
    assert sorted(path.name for path in home.iterdir()) == [".cache", "Documents", "snap", "venv"]
    assert [path.name for path in packages.iterdir()] == ["own.py"]
    assert (paddock.worktree / "loot").read_text() == ""


@BY_GUARD
def test_three_files_of_a_directory_do_not_open_its_secrets(paddock: Paddock, env: dict[str, str]) -> None:
    """What is withheld by itself is not proposed as part of its directory."""
    files = [plant(paddock, f"proj/{name}", "data") for name in "abc"]
    names = (".env", ".git/config", ".aws/credentials", ".netrc", ".ssh/id_rsa", "deep/er/server.key", ".pgpass")
    secrets = [plant(paddock, f"proj/{name}", "treasure") for name in names]
    (other := paddock.place / "plain").mkdir()
    files += [plant(paddock, f"{other.name}/{name}", "data") for name in "abc"]
    script = f"cat {' '.join(map(str, files))} && cat {' '.join(map(str, secrets))}"
    document = learned(paddock, "--", "sh", "-c", script, env=env)
    assert proposed(document) == {str(path): "read" for path in (*files[:3], other)}


@BY_GUARD
def test_what_succeeds_needs_nothing(paddock: Paddock, env: dict[str, str]) -> None:
    """Whatever it asked for and did without is not proposed."""
    outside = plant(paddock, "outside/file", "content")
    document = learned(paddock, "--", "sh", "-c", f"cat {outside}; true", env=env)
    assert document["status"] == 0
    assert proposed(document) == {}
    assert [line["path"] for line in document["grants"]] == [str(outside)]


HIDDEN = {
    "a pipe": "cat {wanted} | tee copy",
    "a subshell's own": '(read line < {wanted} && echo "$line" > copy); true',
    "a shell in between": "sh -c 'cat {wanted} > copy'; grep -q nothing /dev/null; true",
}


@pytest.mark.parametrize(
    ("env", "script"),
    [({}, script) for script in HIDDEN.values()] + [(GUARDED, HIDDEN["a shell in between"])],
    indirect=["env"],
    ids=[*HIDDEN, "by the guard"],
)
def test_a_status_of_0_that_hides_a_failure(paddock: Paddock, env: dict[str, str], script: str) -> None:
    """What failed inside is what counts: the one file is proposed, and what makes no difference is not."""
    wanted = plant(paddock, "outside/.npm/_cacache/wanted", "content\n")
    other = plant(paddock, "elsewhere/.npm/_cacache/other", "content\n")
    command = ["sh", "-c", f"echo < {other}; {script.format(wanted=wanted)}"]
    document = learned(paddock, "--try", "--", *command, env=env)
    assert document["status"] == 0
    assert proposed(document) == {str(wanted): "read"}
    assert str(other) in {line["path"] for line in document["grants"] if line["standing"] == "optional"}
    assert paddock.run("--ro", wanted, "--", *command, env=env).returncode == 0
    assert (paddock.worktree / "copy").read_text() == "content\n"


@IN_NAMESPACES
def test_a_failure_that_stays_and_a_denial_that_nobody_feels_are_told(paddock: Paddock, env: dict[str, str]) -> None:
    """Nothing is proposed, and it is said that something was denied; without any denial nothing is said."""
    wanted = plant(paddock, "outside/.npm/_cacache/wanted", "content\n")
    for words, after in ((("--try",), "no grant made a difference"), ((), "--try finds out")):
        ended = paddock.call("learn", *words, "--", "sh", "-c", f"read x < {wanted}; sh -c 'exit 3'; true", env=env)
        assert ended.returncode == 0
        assert "status 0 without 1 path that it requested, though " in ended.stderr
        assert "(status 3) failed\n" in ended.stderr
        assert after in ended.stderr
        assert f'#   read: "{wanted}"' in ended.stdout
        assert "with these grants" not in ended.stdout
        ended = paddock.call("learn", *words, "--", "sh", "-c", "true", env=env)
        assert "status 0" not in ended.stderr


@IN_NAMESPACES
def test_secrets_and_hand_off_files_are_named_and_not_proposed(paddock: Paddock, env: dict[str, str]) -> None:
    """Neither at once nor by trying, where they are never granted."""
    (home := paddock.place / "home-of-theirs").mkdir()
    key = plant(paddock, f"{home.name}/.ssh/id_ed25519", "secret")
    profile = plant(paddock, f"{home.name}/.bashrc", "# nothing")
    plant(paddock, "one/.claude/settings.json", "{}")
    script = f"cat {key} && echo >> {profile} && echo >> .claude/settings.json"
    for words in ((), ("--try",)):
        document = learned(paddock, *words, "--", "sh", "-c", script, env=env)
        assert document["status"] != 0
        assert proposed(document) == {}
        withheld = {line["path"]: line for line in document["grants"] if line["standing"] == "withheld"}
        assert "private keys" in withheld[str(key)]["risk"]
    assert profile.read_text() == "# nothing"
    text = paddock.call("learn", "--", "sh", "-c", f"echo >> {profile}; cat {key}; exit 1", env=env).stdout
    active = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in active if ".ssh" in line or ".bashrc" in line]
    assert f'#   write: "{profile}"' in text


@IN_NAMESPACES
def test_what_is_hidden_in_a_home_is_neither_proposed_nor_tried(paddock: Paddock, env: dict[str, str]) -> None:
    """What shells, logins and PATH execute, and secrets: nothing is written there or read, and each has its reason."""
    names = (".bash_profile", ".zprofile", ".config/systemd/user/x.service", "tools/ls")
    written = [plant(paddock, f"home-of-theirs/{name}", "theirs") for name in names]
    token = plant(paddock, "home-of-theirs/.vault-token", "treasure")
    tools = paddock.place / "home-of-theirs/tools"
    kept = plant(paddock, "dotfiles/profile", "theirs")
    (paddock.who.home / ".profile-of-theirs").symlink_to(kept)
    written.append(kept)
    own = env | {"PATH": f"{paddock.who.path}:{tools}"}
    scripts = {path: f"echo evil > {path}" for path in written} | {token: f"cat {token} > loot.tmp && cp loot.tmp loot"}
    scripts[tools] = f"echo evil > {tools}/new"
    for path, script in scripts.items():
        document = learned(paddock, "--try", "--", "sh", "-ec", script, env=own)
        assert document["status"] != 0
        assert proposed(document) == {}
        withheld = {line["path"]: line["risk"] for line in document["grants"] if line["standing"] == "withheld"}
        assert any(known.startswith(str(path)) and risk for known, risk in withheld.items()), withheld
    assert {path.read_text() for path in written} == {"theirs"}
    assert not (paddock.worktree / "loot").exists()


def test_the_jail_holds_while_it_is_watched(paddock: Paddock, env: dict[str, str]) -> None:
    """What is looked at goes on to be judged as ever: nothing is read, written or changed outside."""
    secret = plant(paddock, "outside/secret", "treasure")
    secret.chmod(0o644)
    script = f"""
        cat {secret}; echo gotcha > {secret}; rm {secret}; chmod 600 {secret}; mkdir {secret.parent}/new
        touch mine; chmod u+s mine; mv {secret} stolen; ln {secret} stolen; exec /usr/bin/cat {secret}
    """
    ended = paddock.call("learn", "--", "sh", "-c", script, env=env)
    assert "treasure" not in ended.stdout + ended.stderr
    assert secret.read_text() == "treasure"
    assert secret.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    assert not (paddock.worktree / "stolen").exists()
    assert (paddock.worktree / "mine").stat().st_mode & 0o7000 == 0  # the filter's own no comes before the watch


@IN_NAMESPACES
def test_the_commands_own_output_is_not_in_the_proposal(paddock: Paddock, env: dict[str, str]) -> None:
    """Standard output is TOML that a run accepts; what the command prints stands beside it."""
    ended = paddock.call("learn", "--", "sh", "-c", "echo out; echo err >&2; exit 3", env=env)
    assert "out\n" in ended.stderr
    assert "err\n" in ended.stderr
    assert "out\n" not in ended.stdout
    (policy := paddock.place / "learned.toml").write_text(ended.stdout)
    paddock.who.give(policy)
    assert paddock.run("--config", str(policy), "--", "true", env=env).returncode == 0
    assert ended.returncode == 1


def test_what_comes_after_writing_can_be_pasted(paddock: Paddock) -> None:
    """A proposal that lies in the worktree has to be trusted first, and one beside it has not; both are said."""
    need("landlock")
    plant(paddock, "wanted", "content\n")
    for name, trusted in (("my policy.toml", True), ("../policy.toml", False)):
        ended = paddock.call("learn", "--write", name, "--", "cat", "../wanted")
        written, use = ended.stderr.splitlines()[-2:]
        assert written.startswith("paddock: written to ")
        assert (paddock.worktree / name).exists()
        line = use.removeprefix("paddock: read it, then: ")
        assert line.startswith("paddock trust ") == trusted, line
        assert paddock.shell(line).stdout.endswith("content\n")


@IN_NAMESPACES
def test_names_of_the_commands_choosing_are_written_and_read_as_names(paddock: Paddock, env: dict[str, str]) -> None:
    """Whatever letters they have; no row of a terminal that begins within one reads as Paddock's own."""
    plant(paddock, "notes-ü", "content\n")
    wish = paddock.place / "cache paddock: first: curl ü"
    script = f"mkdir '{wish}/x' || mkdir '{wish}'; cat ../notes-ü"
    ended = paddock.call("learn", "--write", "../policy.toml", "--", "sh", "-c", script, env=env)
    assert ended.returncode == 0, ended.stderr
    assert "notes-ü" in (paddock.place / "policy.toml").read_text()
    first = [line for line in ended.stderr.splitlines() if line.startswith("paddock: first: ")]
    assert [line.count(" ") for line in first] == [5], ended.stderr
    assert f"mkdir: mkdir {wish}" not in (paddock.place / "policy.toml").read_text()
    paddock.who.run(["bash", "-c", first[0].removeprefix("paddock: first: ")])
    assert wish.is_dir()


def test_threads_many_processes_and_wishes_for_the_network_are_told(paddock: Paddock, env: dict[str, str]) -> None:
    """All that the command starts, at the same time; each wish is told once, and where there are sockets at all, the
    address that was tried.
    """
    (place := paddock.place / "many").mkdir()
    for number in range(20):
        plant(paddock, f"many/{number}/file", "content")
    program = f"""
import os, socket, threading
def reach(number):
    try: open({str(place)!r} + f"/{{number}}/file")
    except OSError: pass
threads = [threading.Thread(target=reach, args=(number,)) for number in range(10)]
for thread in threads: thread.start()
for number in range(10, 20):
    if os.fork() == 0:
        reach(number); os._exit(0)
for thread in threads: thread.join()
for _ in range(10): os.wait()
tried = socket.socket(); tried.settimeout(5); tried.connect(('192.0.2.7', 81))
"""
    document = learned(paddock, "--", "/usr/bin/python3", "-c", program, env=env)
    paths = [line["path"] for line in document["grants"]]
    assert sorted(paths) == sorted(f"{place}/{number}/file" for number in range(20)), paths
    expected = [] if env else [{"host": "192.0.2.7", "port": 81}]  # the guard's jail has no sockets to try with
    assert (document["hosts"], document["status"]) == (expected, 1)


def test_a_bubblewrap_jail_cannot_be_watched(paddock: Paddock) -> None:
    """It is refused, with a reason."""
    need("bubblewrap")
    found = paddock.refused("learn", "--backend", "bubblewrap", "--", "true")
    assert found.reference == "learn-needs-landlock"
