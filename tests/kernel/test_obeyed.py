"""What the user's git and shells obey in a worktree by his own configuration: whoever writes it is stopped or told.

Each attack ends outside: the user's own git, with his own configuration, runs what is there then.
"""

import json
from pathlib import Path

import pytest

from policy import promises
from tests.support.features import need, need_backend
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES

NAMED = {
    "core.hooksPath": ("scripts/hooks", "scripts/hooks/pre-commit"),
    "core.fsmonitor": ("./tools/monitor", "tools/monitor"),
    "core.editor": ("sh -c 'exec tools/editor \"$@\"' -", "tools/editor"),
    "core.sshCommand": ("ssh -F tools/ssh", "tools/ssh"),
    "filter.a.clean": ("python3 clean.py %f", "clean.py"),
    "filter.b.process": ("env X=1 tools/process", "tools/process"),
    "merge.c.driver": ("tools/driver %O %A %B", "tools/driver"),
    "diff.d.textconv": ("tools/textconv", "tools/textconv"),
    "alias.e": ("!cd tools && ./alias.sh", "tools/alias.sh"),
    "alias.f": ('!"$(git rev-parse --show-toplevel)"/tools/top.sh', "tools/top.sh"),
    "gpg.program": ("{main}/tools/gpg.sh", "tools/gpg.sh"),
    "credential.helper": ("store --file=tools/store.txt", "tools/store.txt"),
    "include.path": ("{main}/tools/included", "tools/included"),
    "includeIf.onbranch:other.path": ("{main}/tools/condition", "tools/condition"),
    "core.attributesFile": ("tools/attributes", "tools/attributes"),
    "init.templateDir": ("tools/template", "tools/template/hooks/post-checkout"),
    "some.tool": ("tools/unknown", "tools/unknown"),
}
ABSENT = ("core.editor", "some.tool")  # what has no look of a file counts where it is one


@pytest.fixture(params=promises.BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return need_backend(request.param)


@pytest.fixture
def here(user_paddock: Paddock) -> Paddock:
    """The command with a linked worktree of an ordinary user."""
    return user_paddock


def _git(here: Paddock, *words: str, at: Path | None = None) -> str:
    ended = here.who.run(["git", *words], cwd=at or here.worktree)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _file(here: Paddock, path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    here.who.give(path)
    for parent in path.parents:
        if parent.is_relative_to(here.place) or parent.is_relative_to(here.who.home):
            here.who.give(parent)


def _strict(here: Paddock, backend: str, script: str, at: Path | None = None) -> str:
    """Standard error of a strict session in a jail that runs `script`."""
    env, words = SWITCHES[backend]
    main = at is not None and at == here.main
    mode = () if backend != promises.GUARD else ("--git", "shared" if main else "readonly")
    return here.run(*words, *mode, "--strict-handoff", "--", "sh", "-c", script, env=env, cwd=at).stderr


@pytest.mark.parametrize(
    ("backend", "where", "there"),
    [(promises.NAMESPACES, "one", True), (promises.GUARD, "one", True), (promises.BUBBLEWRAP, "main", True),
     (promises.NAMESPACES, "main", False), (promises.GUARD, "one", False)],
    indirect=["backend"],
)  # fmt: skip
def test_what_the_configuration_names_is_protected_and_told(
    here: Paddock, backend: str, where: str, there: bool
) -> None:
    """In the repository's configuration, for what exists and what does not yet; other files can be written."""
    root = here.place / where
    wanted = {key: path for key, (_, path) in NAMED.items() if there or key not in ABSENT}
    for key in wanted:
        _git(here, "config", key, NAMED[key][0].format(main=here.main))
    for path in wanted.values() if there else ():
        _file(here, root / path, "" if "include" in path or "condition" in path else "#!/bin/sh\n")
    made = f"for f in {' '.join(wanted.values())} plain; do mkdir -p $(dirname $f); echo '# evil' >>$f; done; :"
    said = _strict(here, backend, made, root)
    evil = {path for path in wanted.values() if (root / path).exists() and "evil" in (root / path).read_text()}
    told = {line.split()[-1] for line in said.splitlines() if " created " in f" {line}" or " changed " in f" {line}"}
    assert evil <= told, said
    held = there and backend != promises.GUARD
    assert evil == ({"tools/unknown"} if held else set(wanted.values())), said
    assert ("handoff-strict" in said, (root / "plain").exists(), "plain" in told) == (True, True, False)


def test_a_hook_that_the_agent_rewrote_does_not_run(here: Paddock, backend: str) -> None:
    """The user's next commit, in the worktree and after a merge in the main checkout; a hook of his own does run."""
    for root in (here.worktree, here.main):
        _file(here, root / "scripts/hooks/pre-commit", "#!/bin/sh\necho ran >>../ran\n")
    for at in ("repository", "user"):
        _git(here, "config", "--unset-all", "core.hooksPath") if at == "user" else None
        _git(here, "config", *(("--global",) if at == "user" else ()), "core.hooksPath", "scripts/hooks")
        said = _strict(here, backend, "echo 'touch ../pwned' >>scripts/hooks/pre-commit; mv scripts moved; true")
        if backend == promises.GUARD:
            assert "scripts/hooks/pre-commit" in said, said
            return
        _git(here, "commit", "-q", "--allow-empty", "-m", "x")
        assert not (here.place / "pwned").exists()
        assert (here.place / "ran").exists()


@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.GUARD], indirect=True)
def test_blanks_in_names_and_the_environments_configuration(here: Paddock, backend: str) -> None:
    """A quoted name is one word, and what GIT_CONFIG_COUNT and GIT_TEMPLATE_DIR name counts like a file's own."""
    _git(here, "config", "filter.c.clean", '"sub/c c.sh" %f')
    env, words = SWITCHES[backend]
    mode = ("--git", "readonly") if backend == promises.GUARD else ()
    named = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": "hk",
             "GIT_TEMPLATE_DIR": str(here.worktree / "tmpl")}  # fmt: skip
    made = 'mkdir sub hk tmpl; echo x >"sub/c c.sh"; echo x >hk/pre-commit; echo x >tmpl/config; echo x >plain'
    ended = here.run(*words, *mode, "--strict-handoff", "--", "sh", "-c", made, env={**env, **named})
    assert "handoff-strict" in ended.stderr
    for name in ("'sub/c c.sh'", "hk/pre-commit", "tmpl/config"):
        assert f"created {name}" in ended.stderr, ended.stderr
    assert "plain" not in ended.stderr


def test_what_is_committed_is_told_by_the_harvest(here: Paddock) -> None:
    """A script that a filter names, in a commit: neither a session nor `worktree harvest` takes it when strict."""
    need("userns")
    before = _git(here, "rev-parse", "HEAD")
    _git(here, "config", "filter.x.clean", "python3 tools/clean.py")
    _git(here, "config", "core.hooksPath", f"{here.main}/scripts")
    made = (
        "mkdir tools scripts; echo x >tools/clean.py; echo x >scripts/pre-push; "
        "git add -A; git commit -qm x; rm -r tools scripts"
    )
    said = here.refused("run", "--git", "private", "--strict-handoff", "--", "sh", "-c", made)
    for _ in range(2):
        assert (said.reference, "tools/clean.py" in said.text, "scripts/pre-push" in said.text) == (
            "handoff-strict", True, True,
        ), said.text  # fmt: skip
        said = here.refused("worktree", "harvest", "--strict-handoff")
    assert _git(here, "rev-parse", "HEAD") == before


def test_dotfiles_behind_links_in_the_home_directory(here: Paddock, backend: str) -> None:
    """A monitor that is put into ~/.gitconfig does not run in another repository, and shells' files are kept, too."""
    home = here.who.home
    links = {
        ".gitconfig": "git/config", ".bashrc": "bashrc", ".config/fish": "fish", ".config/git/ignore": "ignored",
        ".ssh/config": "ssh", ".config/nvim/init.lua": "vim/init.lua",
    }  # fmt: skip
    for name, path in links.items():
        _file(here, here.worktree / path / "config.fish" if name.endswith("fish") else here.worktree / path, "")
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(here.worktree / path)
    here.who.give(home)
    other = here.place / "other"
    _git(here, "init", "-q", str(other), at=here.place)
    monitor = f'[core]\\nfsmonitor = "touch {here.place}/pwned;false"\\n'
    made = (
        f"printf '{monitor}' >>git/config; for f in bashrc fish/config.fish fish/new ignored ssh vim/init.lua; do "
        "echo '# evil' >>$f; done; echo x >plain"
    )
    said = _strict(here, backend, made)
    if backend == promises.GUARD:
        for path in ("git/config", "bashrc", "fish/config.fish", "fish/new", "ignored", "ssh", "vim/init.lua"):
            assert path in said, said
    else:
        _git(here, "status", at=other)
        assert not (here.place / "pwned").exists()
        assert "evil" not in "".join(path.read_text() for path in here.worktree.rglob("*") if path.is_file())
    assert (here.worktree / "plain").exists()


def test_what_a_cached_plan_was_made_from_is_looked_at_again(here: Paddock) -> None:
    """Configuration that changes between two launches: the repository's, the user's, an included and a linked file."""
    need("userns")
    (here.worktree / "a").mkdir()
    for name in "bcde":
        _file(here, here.worktree / "a" / name, "")
    (here.place / "inc").write_text("")
    here.who.give(here.place / "inc")
    _git(here, "config", "include.path", str(here.place / "inc"))
    changes = [
        ("config", "core.fsmonitor", "a/b"),
        ("config", "--global", "core.pager", "a/c"),
        ("config", "-f", str(here.place / "inc"), "core.editor", "./a/d"),
    ]
    tried = "for f in a/b a/c a/d a/e; do echo x 2>&- >>$f && echo $f; done; :"
    assert here.run("--", "sh", "-c", tried).stdout.split() == ["a/b", "a/c", "a/d", "a/e"]
    for at, words in enumerate(changes):
        _git(here, *words)
        assert here.run("--", "sh", "-c", tried).stdout.split() == ["a/b", "a/c", "a/d", "a/e"][at + 1 :]
    (here.who.home / ".profile").symlink_to(here.worktree / "a/e")
    assert here.run("--", "sh", "-c", tried).stdout == ""


def test_the_user_can_have_them_reported_only(here: Paddock) -> None:
    """What his own configuration reports is writable; the project's, which an agent may write, cannot say so."""
    need("userns")
    _file(here, here.worktree / "scripts/hooks/pre-commit")
    _git(here, "config", "core.hooksPath", "scripts/hooks")
    line = '[handoff]\nreport = ["scripts/hooks"]\n'
    (here.worktree / ".paddock.toml").write_text(line)
    tried = ("--", "sh", "-c", "echo x >>scripts/hooks/pre-commit && echo wrote")
    assert here.run(*tried).stdout == ""
    config = here.who.home / ".config/paddock"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(line)
    here.who.give(here.who.home / ".config")
    ended = here.run(*tried)
    assert (ended.stdout, "scripts/hooks/pre-commit" in ended.stderr) == ("wrote\n", True), ended.stderr


def test_files_in_another_tree_that_is_granted(here: Paddock, backend: str) -> None:
    """What the user's git obeys in a tree behind --rw is a hand-off file as well."""
    shared = here.place / "shared"
    _file(here, shared / "config", "[user]\n\tname = x\n")
    _git(here, "config", "--global", "include.path", str(shared / "config"))
    env, words = SWITCHES[backend]
    report = here.place / "report"
    made = ("sh", "-c", f"echo '# evil' >>{shared}/config; echo x >{shared}/plain")
    here.run(*words, "--git", "readonly", "--rw", shared, "--report", report, "--", *made, env=env)
    told = [each["path"] for each in json.loads(report.read_text())["handoff"]]
    assert (shared / "plain").exists()
    assert told == ([str(shared / "config")] if backend == promises.GUARD else [])
    assert ("evil" in (shared / "config").read_text()) == (backend == promises.GUARD)
