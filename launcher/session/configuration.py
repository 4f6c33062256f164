"""The configuration files of one launch, from the disk to `Settings`.

Every file is read once; what is hashed, judged and parsed are the same bytes.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcher.safefs import guarded_files, walk
from launcher.safefs.guarded_files import Inside
from launcher.session.places import Places, made, places, unusable
from launcher.vcs import disk, written
from policy import config
from policy.config.layer import Kind, Layer, parse, shipped
from policy.config.settings import Settings, loosening, resolve
from policy.config.values import Base
from policy.errors import Refusal
from policy.handoff import PROTECT, REPORT
from policy.pasted import quoted
from policy.plan import beneath

# Which exact contents of which files the user has read and accepted.
#
# A record is (canonical path, SHA-256 of the content). It lives under the user's state directory, which no jail can
# reach: an agent that could write here could trust its own file.


_NAME = "trust.json"
_VERSION = 1
_LARGEST = 8 << 20


class Trust:
    """The store of one user.

    Args:
        directory: Paddock's state directory (`places().state`); made, with mode 0700, when something is recorded.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = os.path.join(directory, _NAME)

    def entries(self) -> tuple[tuple[str, str], ...]:
        """All records as (canonical path, SHA-256 in hexadecimal), sorted by path.

        Refusals: trust-damaged (the store is not what was written), state-not-ours (it could be somebody else's).
        """
        return tuple(sorted(self._load().items()))

    def is_trusted(self, path: str, content: bytes) -> bool:
        """Whether exactly this content was accepted for the file at `path` (canonical)."""
        return self._load().get(path) == digest_of(content)

    def trust(self, path: str, content: bytes) -> str:
        """Records `content` for `path` (canonical), in place of an older record; returns the digest."""
        with self._changing() as records:
            records[path] = digest_of(content)
        return digest_of(content)

    def forget(self, path: str) -> bool:
        """Removes the record of `path`; False when there was none."""
        if path not in self._load():
            return False  # and no directory was made for nothing
        with self._changing() as records:
            return records.pop(path, None) is not None

    def _load(self) -> dict[str, str]:
        content = guarded_files.read(self.path, follow=False, limit=_LARGEST)
        if content is None:
            return {}
        if content.owner != os.geteuid() or content.mode & 0o077:
            raise Refusal(
                "state-not-ours",
                f"{self.path} is not a private file of this user",
                context=f"owner {content.owner}, mode {content.mode:04o}; expected owner {os.geteuid()}, mode 0600",
                hint="remove it, then trust again what you have read",
            )
        try:
            stored = json.loads(content.data)
            if stored["version"] != _VERSION:
                raise ValueError(f"version {stored['version']}")
            records = stored["files"]
            if not all(isinstance(text, str) for pair in records.items() for text in pair):
                raise TypeError("records are pairs of strings")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Refusal(
                "trust-damaged",
                f"{self.path} is damaged, so nothing in it can be trusted",
                context=str(error),
                hint="remove it, then trust again what you have read",
            ) from None
        return dict(records)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """The records, written back when the block ends; parallel writers wait for each other (flock(2))."""
        made(self._directory)
        lock_path = f"{self.path}.lock"
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise unusable(lock_path, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = self._load()
            yield records
            data = json.dumps({"version": _VERSION, "files": dict(sorted(records.items()))}, indent=1) + "\n"
            try:
                walk.replace(self.path, data.encode("ascii"))
            except OSError as error:
                raise unusable(self.path, error) from None
        finally:
            os.close(lock)


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


SYSTEM_FILE = "/etc/paddock/config.toml"
PROJECT_NAME = ".paddock.toml"

Environ = os._Environ[str] | dict[str, str]


class Review(NamedTuple):
    """A file as `paddock trust` shows it: canonical path, content, and what it loosens."""

    path: str
    content: bytes
    loosens: tuple[str, ...]


def sources(project_root: str, config_file: str | None, environ: Environ) -> tuple[str, ...]:
    """Every path that `load` depends on, present or absent: the inputs for the plan cache.

    Note them *before* calling `load`: a file that changes in between then invalidates what was made from it. The
    answer itself depends on HOME, XDG_CONFIG_HOME and XDG_STATE_HOME.
    """
    own = places(environ)
    found = [SYSTEM_FILE, user_file(own), os.path.join(project_root, PROJECT_NAME)]
    return (*found, *([os.path.abspath(config_file)] if config_file else []), Trust(own.state).path)


def load(
    project_root: str,
    config_file: str | None,
    flags_layer: Layer | None,
    environ: Environ,
    *,
    trust: Trust | None = None,
    system_file: str = SYSTEM_FILE,
) -> tuple[Settings, tuple[str, ...]]:
    """Reads and merges all layers.

    Args:
        project_root: canonical root of the worktree.
        config_file: the `--config` option; a relative path is relative to the current directory.
        flags_layer: from `policy.config.layer.layer`.
        environ: HOME and the XDG directories.
        trust: the store of accepted contents; the user's own when None.
        system_file: another place for the machine's file, for tests.

    Returns:
        the settings and the paths of `sources`.

    Refusals: config-insecure, config-missing, config-untrusted, and those of `guarded_files.read` and `layer.parse`.
    """
    own = places(environ)
    trust = trust or Trust(own.state)
    layers = [shipped()]
    if machine := _system(system_file):
        layers.append(machine)
    if user := _user(user_file(own), own):
        layers.append(user)
    if project := _project(os.path.join(project_root, PROJECT_NAME), Kind.PROJECT, project_root, own, trust):
        layers.append(project)
    if config_file is not None:
        layers.append(_explicit(config_file, project_root, own, trust))
    if flags_layer is not None:
        layers.append(flags_layer)
    paths = sources(project_root, config_file, environ)
    return resolve(layers), tuple(system_file if path == SYSTEM_FILE else path for path in paths)


def handoff_patterns(project_root: str, environ: Environ) -> list[tuple[str, str]]:
    """The configuration's hand-off patterns with their modes, for a harvest that is no session's. Refuses as `load`."""
    settings, _ = load(project_root, None, None, environ)
    patterns = [(entry.value, PROTECT) for entry in settings.handoff_protect]
    return [*patterns, *((entry.value, REPORT) for entry in settings.handoff_report)]


def review(path: str, project_root: str, environ: Environ, *, system_file: str = SYSTEM_FILE) -> Review:
    """Reads and checks a file that is about to be trusted, and says what it loosens against the layers below it.

    Args:
        path: the file; it must be a regular file, not a symbolic link.
        project_root: canonical root of the worktree, for its relative paths.

    Refusals: config-missing, and those of `load` but config-untrusted.
    """
    own = places(environ)
    canonical = canonical_name(path)
    content = guarded_files.read(canonical, follow=False)
    if content is None:
        raise missing(path)
    below = [layer for layer in (shipped(), _system(system_file), _user(user_file(own), own)) if layer is not None]
    layer = parse(content.data, Kind.PROJECT, canonical, Base(project_root, own.home), trusted=False)
    return Review(canonical, content.data, tuple(loosening(resolve(below), layer)))


def canonical_name(path: str) -> str:
    """`path` with its directory resolved and its last component as it is: a link there must stay visible."""
    directory, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(directory), name)


def write_example(project_root: str, *, force: bool) -> str:
    """Writes the commented example to ``.paddock.toml`` in `project_root`; returns its path.

    Refusals: init-exists (without `force`), init-failed.
    """
    path = os.path.join(project_root, PROJECT_NAME)
    data = Path(config.__file__).with_name("template.toml").read_bytes()
    name = f"{PROJECT_NAME}.{os.urandom(6).hex()}" if force else PROJECT_NAME
    try:
        with Inside(project_root) as root:
            root.create(name, data, mode=0o644)
            if force:
                try:
                    root.move(name, PROJECT_NAME)
                except OSError:
                    root.remove(name)
                    raise
    except FileExistsError:
        raise Refusal(
            "init-exists",
            f"{path} already exists, and is left unchanged",
            hint="paddock init --force replaces it",
        ) from None
    except OSError as error:
        raise Refusal("init-failed", f"cannot write {path}", context=error.strerror or str(error)) from None
    return path


def user_file(own: Places) -> str:
    """The user's own configuration."""
    return os.path.join(own.config, "config.toml")


def _system(path: str) -> Layer | None:
    content = guarded_files.read(path, follow=True)
    if content is None:
        return None
    _check_owner(path, content, (0,))
    return parse(content.data, Kind.SYSTEM, path, Base(None, None))


def _user(path: str, own: Places) -> Layer | None:
    content = guarded_files.read(path, follow=True)  # dotfile managers make it a link; what counts is the file's owner
    if content is None:
        return None
    _check_owner(path, content, (0, os.geteuid()))
    return parse(content.data, Kind.USER, path, Base(None, own.home))


def _project(path: str, kind: Kind, root: str, own: Places, trust: Trust) -> Layer | None:
    content = guarded_files.read(path, follow=False)
    if content is None:
        return None
    layer = parse(content.data, kind, path, Base(root, own.home), trusted=False)
    if trust.is_trusted(path, content.data):
        return Layer(layer.kind, layer.origin, layer.content, trusted=True)
    return layer


def _explicit(config_file: str, root: str, own: Places, trust: Trust) -> Layer:
    trail = disk.Names().walk(os.path.abspath(config_file))
    canonical = trail.canonical
    trees = (root, *written.trees(own.state))
    if any(disk.decided_in(tree, trail) for tree in trees):
        # It lies where agents write: naming it on the command line is no proof that anybody read it today. Nor does it
        # lie elsewhere because a link there leads out: to the private home, say, where they write as well.
        inside = canonical is not None and any(beneath(canonical, tree) for tree in trees)
        path = canonical if inside else trail.entry
        layer = None if path is None else _project(path, Kind.FILE, root, own, trust)
        if layer is None:
            raise missing(config_file)
        return layer
    content = None if canonical is None else guarded_files.read(canonical, follow=False)
    if canonical is None or content is None:
        raise missing(config_file)
    _check_owner(canonical, content, (0, os.geteuid()))
    return parse(content.data, Kind.FILE, canonical, Base(root, own.home))


def missing(path: str) -> Refusal:
    """The Refusal for a configuration file that was named and is not there."""
    return Refusal(
        "config-missing", f"{path} does not exist", hint="check the path after --config (or `paddock trust`)"
    )


def _check_owner(path: str, content: guarded_files.Content, owners: tuple[int, ...]) -> None:
    """Refuses a file that somebody else may write: it could grant them this user's files."""
    if content.owner not in owners:
        wanted = "root" if owners == (0,) else "you or root"
        raise Refusal(
            "config-insecure",
            f"{path} does not belong to {wanted}",
            context=f"its owner is user {content.owner}, who could change what is allowed here",
            hint="replace it with a file of your own",
        )
    if content.mode & 0o022:
        raise Refusal(
            "config-insecure",
            f"{path} can be written by others",
            context=f"mode {content.mode:04o}; anyone who can write it could change what is allowed here",
            hint=f"chmod go-w {quoted(path)}",
        )
