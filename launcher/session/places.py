"""Where Paddock keeps things of its own, after the XDG base directory specification.

Launch path: `os` only. No directory is made here; `made` does that, and checks whose it is.
"""

from launcher.lean import os
from policy.errors import Refusal, unusable

SYSTEM_RUNTIME = "/run/paddock"
"""Where the sockets of services lie that the system's manager runs for users."""

SOCKETS = "service/sockets"
"""In the state directory: where services of this user have listened; canonical directories, each ended by a NUL."""

AUDIT_SOCKET = "audit.sock"
"""In a service's runtime directory: where launchers ask for audit records."""


class Places:
    """Absolute directories of one user: `home`, `config`, `state`, `cache`, and `runtime` for the service's socket."""

    __slots__ = ("cache", "config", "home", "runtime", "state")

    def __init__(self, home: str, config: str, state: str, cache: str, runtime: str = "") -> None:
        self.home = home
        self.config = config
        self.state = state
        self.cache = cache
        self.runtime = runtime or state + "/run"

    def own(self) -> tuple[str, ...]:
        """The directories that no jail may reach, whatever else is granted."""
        return (self.config, self.state, self.cache, SYSTEM_RUNTIME, *self.runtimes())

    def runtimes(self) -> tuple[str, ...]:
        """Where a service of this user may listen outside of `state`: this environment's place, and a login's."""
        usual = f"/run/user/{os.geteuid()}/paddock"
        return (usual,) if self.runtime in (usual, self.state + "/run") else (self.runtime, usual)

    def make_runtimes(self) -> None:
        """Makes those whose runtime directory is there and this user's: a jail can only hide what exists."""
        for path in self.runtimes():
            try:
                above = os.lstat(os.path.dirname(path))
                if above.st_uid == os.geteuid() and above.st_mode & 0o170000 == 0o040000:
                    make_private(path)
            except OSError:
                continue  # then nobody can listen there, either


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
            "there is no home directory for private state",
            context=f"HOME is not an absolute path and user {os.geteuid()} has no entry in the password database",
            hint="set HOME to an absolute path",
        )

    def base(name: str, default: str) -> str:
        value = environ.get(name, "")
        return os.path.normpath((value if value.startswith("/") else f"{home.rstrip('/')}/{default}") + "/paddock")

    return Places(
        os.path.normpath(home),
        base("XDG_CONFIG_HOME", ".config"),
        base("XDG_STATE_HOME", ".local/state"),
        base("XDG_CACHE_HOME", ".cache"),
        # Where nobody gives a runtime directory there is none to go with the login: the state directory holds it then.
        os.path.normpath(runtime + "/paddock")
        if (runtime := environ.get("XDG_RUNTIME_DIR", "")).startswith("/")
        else "",
    )


def current_directory() -> str:
    """The caller's current directory. Refusal when it has been deleted or cannot be reached."""
    try:
        return os.getcwd()
    except OSError as error:
        raise Refusal(
            "directory-missing",
            "the current directory has been deleted, or cannot be reached",
            context=error.strerror or "",
            hint="cd into a directory that exists, such as a git worktree",
        ) from None


def made(path: str) -> str:
    """Makes `path` (mode 0700, parents too) when it is missing, and checks that it is a directory of ours.

    Returns `path`. Refusal when it cannot be made, belongs to somebody else, or others may write it.
    """
    if not is_there(path):
        try:
            make_private(path)
        except OSError as error:
            raise unusable(path, error) from None
        is_there(path)
    return path


def is_there(path: str) -> bool:
    """Whether a private directory of this user is at `path`; False where nothing is.

    Refusals: state-not-ours (it is something else), state-unusable.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unusable(path, error) from None
    kind = found.st_mode & 0o170000
    if kind == 0o040000 and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return True
    if kind != 0o040000:
        why = "it is a symbolic link" if kind == 0o120000 else "it is not a directory"
    else:
        why = f"its owner is user {found.st_uid} and its mode {found.st_mode & 0o7777:04o}"
    raise Refusal(
        "state-not-ours",
        f"{path} is not a private directory of this user",
        context=f"{why}; it must be a directory of user {os.geteuid()} that nobody else can write",
        hint="remove it, or point XDG_STATE_HOME and XDG_CACHE_HOME at directories of your own",
    )


def make_private(path: str) -> None:
    """Makes a directory, and its parents where they are missing, with mode 0700 whatever the umask (OSError).

    `os.makedirs` would give its mode to the last one alone.
    """
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_private(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return  # another launch was quicker, or it is something else: the caller looks
    try:
        os.chmod(path, 0o700)
    except FileNotFoundError:
        return  # removed in this moment, as what nobody uses: the caller looks
