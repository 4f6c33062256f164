"""A worktree's private home, made once: the user's name for git, and what toolchains must find there.

It is filled under another name and then renamed, because from its first session on the home is the agent's to write: a
link planted in it would turn a later write of ours into a write anywhere.
"""

import os
import shutil
import subprocess

from launcher.jail.remove import remove_tree
from launcher.session.places import made, make_private, unusable
from launcher.session.state import own_home
from policy.plan import SYSTEM_PATH

MOST_BYTES = 1 << 20


def make_private_home(home: str, common_dir: str, seeds: tuple[tuple[str, str], ...]) -> None:
    """Makes `home` unless it is there.

    Args:
        home: where the private home belongs.
        common_dir: the repository's common git directory; its own configuration may set another identity.
        seeds: (path relative to the home, canonical source) of plain files to copy.

    Raises:
        Refusal: it cannot be written.
    """
    if os.path.lexists(home):
        own_home(home)
        return
    parent = made(os.path.dirname(home))
    fresh = f"{parent}/.new-{os.urandom(5).hex()}"
    try:
        make_private(fresh)
        _write(f"{fresh}/.gitconfig", _git_identity(common_dir))
        for relative, source in seeds:
            _copy(source, f"{fresh}/{relative}")
        try:
            os.rename(fresh, home)
        except OSError:
            if not os.path.isdir(home):  # else another launch was quicker
                raise
    except OSError as error:
        raise unusable(home, error) from None
    finally:
        remove_tree(fresh)


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask
        file.write(content)


def _copy(source: str, target: str) -> None:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # gone since it was found: the tool then makes its own
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) <= MOST_BYTES:
        make_private(os.path.dirname(target))
        _write(target, content)


def _git_identity(common_dir: str) -> bytes:
    """A git configuration with user.name and user.email, and nothing else of the user's.

    Aliases, credential helpers and hooks paths run programmes, and remotes carry tokens.
    """
    lines = [b"[user]"]
    for key in (b"name", b"email"):
        value = _configured(b"user." + key, common_dir)
        if value:
            escaped = value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            lines.append(b"\t" + key + b' = "' + escaped + b'"')
    return b"\n".join(lines) + b"\n"


def _configured(key: bytes, common_dir: str) -> bytes:
    """The value of a key in the user's and the repository's configuration; empty when git cannot tell."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "PATH": SYSTEM_PATH}
    git = shutil.which("git", path=SYSTEM_PATH)
    if git is None:
        return b""
    try:
        answer = subprocess.run(
            [
                os.fsencode(git),
                b"--git-dir=" + os.fsencode(common_dir),
                b"config",
                b"--includes",
                b"--null",
                b"--get",
                key,
            ],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    value = answer.stdout.rstrip(b"\0")
    return b"" if b"\n" in value or len(value) > 1000 else value
