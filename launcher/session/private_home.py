"""A worktree's private home, made once: the user's name for git, and what toolchains must find there.

It is filled under another name and then renamed, because from its first session on the home is the agent's to write: a
link planted in it would turn a later write of ours into a write anywhere.
"""

import os

from launcher.safefs.remove import remove_tree
from launcher.session.places import made, make_private, unusable
from launcher.session.state import own_home
from launcher.vcs.quarantine import settings
from policy.errors import Refusal

MOST_BYTES = 1 << 20


def make_private_home(home: str, git_dir: str, seeds: tuple[tuple[str, str], ...], worktree: str) -> None:
    """Makes `home` unless it is there.

    Args:
        home: where the private home belongs.
        git_dir: of the repository, whose own configuration may set another identity.
        seeds: (path relative to the home, canonical source) of plain files to copy.
        worktree: canonical root.

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
        _write(f"{fresh}/.gitconfig", _git_identity(git_dir, worktree))
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


def _git_identity(git_dir: str, worktree: str) -> bytes:
    """A git configuration with user.name and user.email, and nothing else of the user's.

    Aliases, credential helpers and hooks paths run programmes, and remotes carry tokens.
    """
    try:
        configured = settings.effective(git_dir, worktree)
    except Refusal:
        return b""  # git outside cannot tell either
    found = [(key, configured.last(key)) for key in ("user.name", "user.email")]
    return settings.text([(key, value) for key, value in found if value and "\n" not in value and len(value) <= 1000])
