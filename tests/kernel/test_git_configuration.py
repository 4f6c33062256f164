"""The user's git configuration is no way into a jail: not for what an agent names in it, and not for its passwords."""

import os
from pathlib import Path

import pytest

from policy import promises
from tests.support.git_scene import Git, make, ok
from tests.support.identity import Who
from tests.support.install import Installed

SECRET = "s3cret-of-the-user"
PRIVATE = 'p=$(git rev-parse --absolute-git-dir); grep -rs s3cret "$p" && echo leaked; '
DAMAGE = 'rm -rf "$(git rev-parse --absolute-git-dir)"/objects; true'


@pytest.fixture
def backend() -> str:
    """What holds the jail, where a test does not say it."""
    return promises.NAMESPACES


@pytest.fixture
def submodules() -> bool:
    """Whether there are some, where a test does not say it."""
    return False


@pytest.fixture
def git(backend: str, submodules: bool, user: Who, installed: Installed, public_dir: Path) -> Git:
    """The linked worktree of an ordinary user, with a secret file and a directory of scripts outside of it."""
    made = make(user, installed, public_dir, "one", backend, submodules=submodules)
    scripts = made.place / "scripts"
    scripts.mkdir()
    for path in (made.place / "secret", scripts / "pre-push"):
        path.write_text(f"#!/bin/sh\n# {SECRET}\n")
        path.chmod(0o700)
    user.give(made.place)
    return made


def _written(git: Git, path: Path) -> str:
    """What an agent writes into configuration, as a piece of bash."""
    return (
        f"git config -f {path} core.excludesFile {git.place}/secret; git config -f {path} core.attributesFile "
        f"{git.place}/secret; git config -f {path} core.hooksPath {git.place}/scripts; "
        f"git config -f {path} user.name Forged; "
    )


def _leaked(git: Git) -> str:
    """What of the secret a new private git directory holds, by an agent's own look at it."""
    git.run(DAMAGE)
    return git.run(PRIVATE + "true").stdout


@pytest.mark.parametrize(("at", "backend"), list(zip(["link", "worktree", "another"], promises.BACKENDS, strict=True)))
def test_included_configuration_that_an_agent_wrote_copies_nothing(git: Git, at: str) -> None:
    """A file in the worktree, one that a link leads to, and one in a tree that was shared with a former session."""
    included = written = git.worktree / ".gitconfig"
    options: tuple[str, ...] = ()
    if at == "link":
        included, written = git.place / "linked", git.worktree / "below/config"
        included.symlink_to(written)
    elif at == "another":
        shared = git.place / "shared"
        shared.mkdir()
        git.who.give(shared)
        included = written = shared / "config"
        ok(git.run("true", "--rw", str(shared)))
        options = ("--rw", str(shared))
    git.outside("config", "include.path", str(included))
    ended = git.run(f"mkdir -p {written.parent}; {_written(git, written)}:", *options)
    assert (ended.returncode, written.exists()) == (0, True), ended.stderr
    assert _leaked(git) == ""


@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.GUARD])
def test_a_file_that_configuration_names_is_not_copied_through_an_agents_tree(git: Git) -> None:
    """Neither what a link of his leads to, nor the default files of a user whose configuration lies in his tree."""
    home = git.who.home / ".config"
    home.mkdir()
    (home / "git").symlink_to(git.worktree / "dot")
    git.outside("config", "core.hooksPath", str(git.place / "hooks"))
    (git.place / "hooks").symlink_to(git.worktree / "hooks")
    git.who.give(home)
    links = "; ".join(f"ln -s {git.place}/secret dot/{name}" for name in ("ignore", "attributes"))
    ended = git.run(f"mkdir dot; {links}; ln -s {git.place}/scripts hooks")
    assert ended.returncode == 0, ended.stderr
    assert _leaked(git) == ""


def test_configuration_of_the_users_own_is_taken_over(git: Git) -> None:
    """His ignored files and hooks, from outside of every agent's tree, and what he includes under a condition."""
    (git.place / "ignored").write_text("*.mine\n")
    (git.place / "scripts/commit-msg").write_text("#!/bin/sh\necho by-hook >>$1\n")
    (git.place / "scripts/commit-msg").chmod(0o755)
    (git.place / "work").write_text(
        f"[user]\n\tname = At Work\n[core]\n\texcludesFile = {git.place}/ignored\n\thooksPath = {git.place}/scripts\n"
    )
    git.who.give(git.place)
    git.outside("config", f"includeIf.gitdir:{git.place}/.path", str(git.place / "work"))
    git.outside("config", "--unset", "user.name")
    said = ok(
        git.run("touch a.mine; git status --porcelain; git commit -q --allow-empty -m x; git log -1 --format=%an%B")
    )
    assert said.split() == ["At", "Workx", "by-hook"]


@pytest.mark.parametrize("backend", [promises.NAMESPACES, promises.GUARD])
def test_what_an_agent_includes_is_in_force_in_his_jail(git: Git) -> None:
    """Configuration in the worktree that the repository includes: git in the jail reads it there, as git outside."""
    (git.worktree / ".gitconfig").write_text('[filter "x"]\n\tclean = sed s/a/b/\n\tsmudge = cat\n')
    (git.worktree / ".gitattributes").write_text("*.x filter=x\n")
    git.who.give(git.worktree)
    git.outside("config", "include.path", str(git.worktree / ".gitconfig"))
    said = ok(git.run("echo a >f.x; git add f.x; git cat-file blob :f.x"))
    assert said == "b\n"


# Settings of git, each of which holds a password.
SECRETS = [
    ("branch.one.remote", "https://user:s3cret@example.invalid/r"),
    ("branch.one.remote", "user:s3cret@example.invalid:r"),
    ("branch.one.pushRemote", "https://s3cret@example.invalid/r"),
    ("branch.one.merge", "https://s3cret@example.invalid/r"),
    ("branch.https://u:s3cret@example.invalid/r.remote", "origin"),
    ("remote.https://u:s3cret@example.invalid/r.fetch", "+refs/heads/*:refs/remotes/x/*"),
    ("remote.origin.url", "https:/u:s3cret@example.invalid/r"),
    ("remote.origin.url", "u:s3cret@example.invalid:r"),
    ("remote.origin.url", "https://example.invalid/r;token=s3cret"),
    ("remote.origin.url", "HTTPS://u:s3cret@example.invalid"),
    ("remote.origin.fetch", "https://u:s3cret@example.invalid/r"),
    ("submodule.library.url", "u:s3cret@example.invalid:r"),
    ("submodule.https://u:s3cret@example.invalid/r.active", "true"),
    ("submodule.library.branch", "https://u:s3cret@example.invalid"),
    ("filter.x.clean", "curl https://u:s3cret@example.invalid"),
    ("filter.x.process", "openssl enc -aes-256-ecb -k s3cret"),
    ("filter.x.smudge", "sed s/placeholder/s3cret/"),
    ("filter.https://u:s3cret@example.invalid.clean", "cat"),
    ("merge.x.driver", "tool --token=s3cret %O %A %B"),
    ("merge.x.name", "https://u:s3cret@example.invalid"),
    ("diff.x.xfuncname", "https://u:s3cret@example.invalid"),
    ("init.defaultBranch", "https://u:s3cret@example.invalid"),
    ("core.whitespace", "https://u:s3cret@example.invalid"),
]


@pytest.mark.parametrize("submodules", [True], ids=["submodules"])
def test_no_password_is_in_the_jails_configuration(git: Git) -> None:
    """Wherever git or its user has put it; also in a submodule's own configuration, and after it was there once."""
    script = "git config remote.up.url; p=$(git rev-parse --absolute-git-dir); grep -rs s3cret $p"
    # One value of a key at a time: of several, one may hide the others.
    rounds: list[dict[str, str]] = []
    for key, value in SECRETS:
        taken = next((each for each in rounds if key not in each), None)
        if taken is None:
            rounds.append(taken := {})
        taken[key] = value
    for number, settings in enumerate(rounds):
        # The jail's configuration is made anew for each round, as a harmless setting beside it shows.
        git.outside("config", "remote.up.url", f"git@host.example:round{number}.git")
        for at in ("", "library"):
            for key, value in settings.items():
                git.outside("config", "--add", key, value, at=at)
        said = git.run(f"{script}; git -C library config --list; true")
        assert said.returncode == 0, (settings, said.stderr)
        assert said.stdout.startswith(f"git@host.example:round{number}.git\n"), (settings, said.stdout)
        assert "s3cret" not in said.stdout, (settings, said.stdout)
        for at in ("", "library"):
            for key, value in settings.items():
                git.outside("config", "--fixed-value", "--unset", key, value, at=at)


def test_harmless_settings_are_in_the_jails_configuration(git: Git) -> None:
    """Names of remotes, addresses without their passwords, and drivers that hold none."""
    kept = {
        "branch.one.remote": "origin",
        "branch.topic/a@b.merge": "refs/heads/topic/a@b",
        "branch.one.rebase": "merges",
        "remote.up.url": "git@host.example:group/project.git",
        "remote.up.fetch": "+refs/heads/*:refs/remotes/up/*",
        "filter.lfs.process": "git-lfs filter-process",
        "filter.nb.clean": "python3 -m nbstripout -t",
        "merge.npm.driver": "npx npm-merge-driver merge %A %O %B %P",
        "core.autocrlf": "input",
        "core.whitespace": "-trailing-space,tab-in-indent",
        "user.email": "a.b+c@example.invalid",
    }
    for key, value in kept.items():
        git.outside("config", key, value)
    git.outside("config", "branch.two.remote", "https://user:s3cret@host.example/r.git")
    said = ok(git.run("git config --list")).splitlines()
    assert [f"{key}={value}" for key, value in kept.items() if f"{key}={value}" not in said] == []
    assert "branch.two.remote=https://host.example/r.git" in said


def test_a_filter_that_may_hold_a_password_fails_in_the_jail(git: Git) -> None:
    """What it converts is not committed unconverted."""
    git.outside("config", "filter.crypt.clean", "openssl enc -aes-256-ecb -k s3cret")
    script = "echo '*.c filter=crypt' >.gitattributes; echo plain >x.c; git add x.c; git ls-files x.c"
    ended = git.run(script)
    assert (ended.stdout, "may hold a password" in ended.stderr) == ("", True), ended.stderr
    assert os.path.exists(git.worktree / "x.c")
