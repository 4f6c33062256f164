"""Where Paddock keeps things of its own, after the XDG base directory specification.

Launch path: `os` only. No directory is made here; `made` does that, and checks whose it is.
"""

import os

from policy.errors import Refusal


class Places:
    """Absolute directories of one user: `home`, `config`, `state`, `cache`."""

    __slots__ = ("cache", "config", "home", "state")

    def __init__(self, home: str, config: str, state: str, cache: str) -> None:
        self.home = home
        self.config = config
        self.state = state
        self.cache = cache

    def own(self) -> tuple[str, ...]:
        """The directories that no jail may reach, whatever else is granted."""
        return (self.config, self.state, self.cache)


def places(environ: "os._Environ[str] | dict[str, str]") -> Places:
    """The directories for this environment.

    Relative XDG values are ignored, as the specification demands; without HOME the password database
    answers. Refusal when neither gives an absolute home directory.
    """
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        import pwd

        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = ""
    if not home.startswith("/"):
        raise Refusal(
            "home-unknown",
            "there is no home directory to keep private state under",
            context=f"HOME is not an absolute path and user {os.geteuid()} has no entry in the password database",
            hint="set HOME to an absolute path",
        )

    def base(name: str, default: str) -> str:
        value = environ.get(name, "")
        return os.path.normpath((value if value.startswith("/") else f"{home}/{default}") + "/paddock")

    return Places(
        os.path.normpath(home),
        base("XDG_CONFIG_HOME", ".config"),
        base("XDG_STATE_HOME", ".local/state"),
        base("XDG_CACHE_HOME", ".cache"),
    )


def made(path: str) -> str:
    """Makes `path` (mode 0700, parents too) when it is missing, and checks that it is a directory of ours.

    Returns `path`. Refusal when it cannot be made, belongs to somebody else, or is open to others.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        try:
            os.makedirs(path, 0o700, exist_ok=True)
            found = os.lstat(path)
        except OSError as error:
            raise unusable(path, error) from None
    except OSError as error:
        raise unusable(path, error) from None
    if found.st_mode & 0o170000 != 0o040000 or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refusal(
            "state-not-ours",
            f"{path} is not a private directory of this user",
            context=f"owner {found.st_uid}, mode {found.st_mode & 0o7777:04o}; not owner {os.geteuid()}, mode 0700",
            hint="remove it, or point XDG_STATE_HOME and XDG_CACHE_HOME at directories of your own",
        )
    return path


def unusable(path: str, error: OSError) -> Refusal:
    """The Refusal for a directory or file of ours that cannot be made or written."""
    return Refusal(
        "state-unusable",
        f"cannot write {path}",
        context=error.strerror or str(error),
        hint="free some space or make it writable, or point XDG_STATE_HOME (and XDG_CACHE_HOME) elsewhere",
    )
