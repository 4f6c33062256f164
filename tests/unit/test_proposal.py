"""From what was missed to grants: few, narrow, and nothing that opens a secret."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.session import teach
from policy import promises
from policy.plan import VERSION, Plan, beneath
from policy.remedy import Line, Missed, Outside, Standing, propose
from policy.remedy import configuration as toml


def plan(**fields: object) -> Plan:
    """A plan for the worktree /src/app."""
    empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
    known = {"version": VERSION, "worktree": "/src/app", "backend": promises.GUARD, "net": "none",
             "grants": (("/src/app", "rwx", "worktree"),)}  # fmt: skip
    return Plan(**(empty | known | fields))


def missed(path: str, access: str = "r", **changes: object) -> Missed:
    return Missed(path, access, False, True, False, path, "openat", "cc")._replace(**changes)  # type: ignore[arg-type]


def clean(_: str) -> bool:
    """A directory that contains nothing of importance."""
    return True


def paths(lines: list[Line], standing: Standing = Standing.PROPOSED) -> dict[str, str]:
    return {line.path: line.key for line in lines if line.standing is standing}


def test_two_files_are_two_lines_and_three_neighbours_are_their_directory() -> None:
    """Only as far up as the directory is nobody's home and holds nothing else of importance."""
    files = [missed(f"/opt/sdk/include/{name}.h") for name in "abc"]
    assert paths(propose(files[:2], plan(), is_clean=clean)) == {file.path: "read" for file in files[:2]}
    assert paths(propose(files, plan(), is_clean=clean)) == {"/opt/sdk/include": "read"}
    assert paths(propose(files, plan())) == {file.path: "read" for file in files}
    beside = [missed(f"/src/{name}") for name in "abc"]
    assert paths(propose(beside, plan(), is_clean=clean)) == {file.path: "read" for file in beside}


@pytest.mark.parametrize("secret", [".env", ".git/config", "deep/er/.aws/credentials", ".netrc", "id_rsa", ".npmrc"])
def test_no_directory_is_proposed_that_contains_what_is_withheld(tmp_path: Path, secret: str) -> None:
    """At any depth; nor one that is too large to be looked through, or cannot be."""
    (there := tmp_path / "proj" / secret).parent.mkdir(parents=True)
    assert teach.is_clean(str(tmp_path / "proj"), plan(), Outside()) == ("/" not in secret)
    there.touch()
    assert not teach.is_clean(str(tmp_path / "proj"), plan(), Outside())


def test_a_directory_that_cannot_be_looked_through_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is gone, and one with more names than are looked at."""
    for name in "abc":
        (tmp_path / name).touch()
    assert teach.is_clean(str(tmp_path), plan(), Outside())
    assert not teach.is_clean(str(tmp_path / "gone"), plan(), Outside())
    monkeypatch.setattr(teach, "_MOST_NAMES", 2)
    assert not teach.is_clean(str(tmp_path), plan(), Outside())


def test_what_is_written_needs_no_line_for_reading() -> None:
    """The same path, and what lies below."""
    wanted = [missed("/data/out", "w", directory=True), missed("/data/out/log"), missed("/data/out")]
    assert paths(propose(wanted, plan())) == {"/data/out": "write"}


@pytest.mark.parametrize("path", ["/home/me/.ssh/id", "/home/me/.bashrc", "/etc/shadow", "/home/me", "/root", "/etc",
                                  "/src", "/", "/run/user/1000/bus", "/home/me/.git-credentials"])  # fmt: skip
def test_secrets_and_whole_homes_are_withheld(path: str) -> None:
    """With their risk, for reading and for writing."""
    for access in "rw":
        (line,) = propose([missed(path, access, directory=True)], plan())
        assert line.standing is Standing.WITHHELD
        assert line.risk


LEFT_OUT = [
    ("/data/me/.bash_profile", "w"), ("/data/me/.zprofile", "w"), ("/data/me/.local/bin/ls", "w"),
    ("/data/me/.config/systemd/user", "w"), ("/data/me/.config/autostart", "w"), ("/data/me/.cargo/registry/x", "w"),
    ("/data/me/bin/ls", "w"), ("/data/me/go", "w"), ("/data/me", "w"), ("/data/me/other/Makefile", "w"),
    ("/usr/local/lib/x", "w"), ("/etc/cron.d/x", "w"),
    ("/data/me/.vault-token", "r"), ("/data/me/.pgpass", "r"), ("/data/me/.codex/auth.json", "r"),
    ("/data/me/.claude/.credentials.json", "r"), ("/data/me/.local/share/keyrings/login.keyring", "r"),
    ("/data/me/.mozilla/firefox/p/logins.json", "r"), ("/data/me/.cache/huggingface/token", "r"),
    ("/data/me/.cache", "r"), ("/data/me/.cache/mozilla/x", "r"), ("/data/me/.cargo/credentials.toml", "r"),
    ("/data/me/.m2/settings.xml", "r"), ("/data/me/.pyenv/versions/3/pip.conf", "r"), ("/data/me/id_rsa", "r"),
    ("/data/me", "r"), ("/data/me/own/login", "r"),
    ("/data/me/dotfiles/profile", "w"), ("/data/me/dotfiles", "w"), ("/data/me/dotfiles/profile", "r"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "access"), LEFT_OUT)
def test_what_others_execute_and_what_may_be_secret_is_withheld(path: str, access: str) -> None:
    """By all tables, and what is hidden unless one knows it as harmless, for a file and for a directory."""
    known = plan(handoff_patterns=(("Makefile", "report"),), logins=(("/data/me/own/login", "login"),))
    for directory in (False, True):
        wish = missed(path, access, directory=directory)
        own = Outside("/data/me", ("/data/me/bin", "/data/me/go/bin"), ("/data/me/dotfiles/profile",))
        (line,) = propose([wish], known, own)
        assert line.standing is Standing.WITHHELD
        assert line.risk


@pytest.mark.parametrize(
    ("path", "access"),
    [("/data/me/.cache/suite", "w"), ("/data/me/reports", "w"), ("/data/me/.cargo/registry/x", "r"),
     ("/data/me/.npm/_cacache/x", "r"), ("/data/me/.m2/repository/x", "r"), ("/data/me/.pyenv/versions/3", "r"),
     ("/data/me/.local/share/fnm/node-versions/x", "r"), ("/data/me/lib/.venv/bin/x", "r"), ("/opt/sdk/x", "r"),
     ("/data/me/other/Makefile", "r"), ("/data/me/bin/x", "r"), ("/src/chromium/x.h", "r")],
)  # fmt: skip
def test_caches_and_installed_programmes_are_proposed(path: str, access: str) -> None:
    """As ever: of caches what is read, and to be written a programme's own."""
    (line,) = propose([missed(path, access)], plan(), Outside("/data/me", ("/data/me/bin",)))
    assert line.standing is Standing.PROPOSED


def test_neighbours_do_not_become_what_is_withheld() -> None:
    """Three files of a home are not the home, and three caches not all of them."""
    for place in ("/data/me", "/data/me/.cache"):
        files = [missed(f"{place}/{name}") for name in "abc"]
        found = propose(files, plan(), Outside("/data/me"), is_clean=clean)
        assert paths(found) == {file.path: "read" for file in files}


def test_what_is_denied_or_read_only_is_withheld() -> None:
    """No grant would help; the line says what would."""
    denied = plan(denied=(("/data/secret", "--deny"),), read_only=(("/data/ro", "git pointer"),))
    for path, access in (("/data/secret/x", "r"), ("/data/ro/x", "w"), ("/data", "r")):
        (line,) = propose([missed(path, access, directory=True)], denied)
        assert line.standing is Standing.WITHHELD


def test_a_new_file_in_a_home_is_that_file() -> None:
    """Not the home directory: it has to be made first."""
    (line,) = propose([missed("/home/me", "w", directory=True, asked="/home/me/history")], plan())
    assert (line.path, line.prepare, line.standing) == ("/home/me/history", "file", Standing.PROPOSED)


def test_what_programmes_do_without_is_optional() -> None:
    """Compiled Python, and what was only looked for; a real wish for the same path counts more."""
    wanted = [missed("/opt/a/__pycache__/x.pyc"), missed("/opt/b/x", seen_only=True)]
    assert paths(propose(wanted, plan())) == {}
    assert len(paths(propose(wanted, plan()), Standing.OPTIONAL)) == 2
    assert paths(propose([*wanted, missed("/opt/b/x")], plan())) == {"/opt/b/x": "read"}


NEW = {"directory": True, "exists": False}


@pytest.mark.parametrize(
    ("wish", "tried"),
    [
        (missed("/data/me/.npm/_cacache/x"), True),
        (missed("/data/me/.cache/pip/x"), True), (missed("/data/me/lib/.venv/bin/x"), True),
        (missed("/opt/sdk/x", public=True), True), (missed("/etc/x", public=True), True),
        (missed("/data/me/.cache/suite", "w", **NEW), False), (missed("/data/me/.cache/evolution/mail"), False),
        (missed("/data/me/bin", "w", **NEW), False), (missed("/data/me/venv/lib/x.pth", "w"), False),
        (missed("/run/systemd/system", "w", directory=True), False), (missed("/var/lib/dpkg/info", "w", **NEW), False),
        (missed("/data/me/Documents/passwords.kdbx"), False), (missed("/data/me/snap/chromium/Cookies"), False),
        (missed("/opt/sdk/x"), False), (missed("/opt/sdk", directory=True), False),
        (missed("/data/x", public=True), False), (missed("/opt/me/x", public=True), False),
    ],
)  # fmt: skip
def test_only_what_can_do_no_harm_is_tried(wish: Missed, tried: bool) -> None:
    """Reading caches and toolchains that are known, and the machine's public files: all else is the user's to add."""
    (line,) = propose([wish], plan(), Outside("/opt/me"))
    assert (line.standing, line.tried) == (Standing.PROPOSED, tried)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_directory_is_tried_only_where_nothing_in_it_is_withheld(is_clean: bool) -> None:
    """A cache that is known may contain a file with credentials."""
    wish = missed("/data/me/lib/.venv", directory=True)
    (line,) = propose([wish], plan(), is_clean=lambda _: is_clean)
    assert line.tried == is_clean


def test_public_files_are_tried_as_files() -> None:
    """Their directory may contain what is not public."""
    files = [missed(f"/opt/sdk/include/{name}.h", public=True) for name in "abc"]
    assert paths(propose(files, plan(), is_clean=clean)) == {file.path: "read" for file in files}


def test_what_everyone_can_read_is_public(tmp_path: Path) -> None:
    """A file whose mode says so, and those of all directories above it."""
    (own := tmp_path / "own").touch(0o644)
    tmp_path.chmod(0o700)
    found = [path for path in ("/etc/passwd", "/etc/shadow", "/etc", str(own), "/etc/gone") if teach._is_public(path)]
    assert found == ["/etc/passwd"]


NAMES = st.sampled_from(["a", "b", "c", "d", ".ssh", "x y", '"q"', "n\nn", "\udcff", "é"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


@settings(max_examples=40)
@given(st.lists(st.builds(missed, PATHS, st.sampled_from(["r", "w", "x"]), directory=st.booleans()), max_size=12))
def test_every_wish_is_covered_by_some_line(wishes: list[Missed]) -> None:
    """Proposed, optional or withheld, nothing is dropped; and the file that is written holds just what is proposed."""
    lines = propose(wishes, plan(grants=()))
    for wish in wishes:
        assert any(beneath(wish.path, line.path) and (line.key == "write" or wish.access != "w") for line in lines), (
            wish
        )
    content = tomllib.loads(toml(lines, ["a heading"]))
    table = content.get("filesystem", {})
    for key in ("read", "write"):
        expected = [line.path for line in lines if line.standing is Standing.PROPOSED and line.key == key]
        assert table.get(key, []) == expected
