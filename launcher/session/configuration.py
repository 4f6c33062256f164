"""The configuration files of one launch, from the disk to `Settings`.

Every file is read once; what is hashed, judged and parsed are the same bytes.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from launcher.safefs import guarded_files
from launcher.safefs.guarded_files import Inside
from launcher.session.places import Places, places
from launcher.session.trust_store import Trust
from launcher.vcs import checkout, disk, worktree_words, written
from launcher.vcs.private import swap
from policy import config
from policy.config.layer import Kind, Layer, parse, shipped
from policy.config.settings import Settings, loosening, resolve
from policy.config.values import Base
from policy.errors import Refusal
from policy.handoff import PROTECT, REPORT
from policy.pasted import quoted
from policy.plan import beneath

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


def is_read(root: str, known: bytes | None, environ: Environ) -> bool:
    """Whether the project's file in a worktree has this content (None: is not there), or one that is trusted.

    Refusals: as `load`.
    """
    own = places(environ)
    path = os.path.join(root, PROJECT_NAME)
    content = guarded_files.read(path, follow=False)
    if (None if content is None else content.data) == known:
        return True
    layer = _project(path, Kind.PROJECT, root, own, Trust(own.state))
    return layer is not None and layer.trusted


def canonical_name(path: str) -> str:
    """`path` with its directory resolved and its last component as it is: a link there must stay visible."""
    directory, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(directory), name)


def write_example(project_root: str, *, force: bool) -> str:
    """Writes the commented example to ``.paddock.toml`` in `project_root`; returns its path.

    Refusals: init-exists (without `force`), init-failed.
    """
    path = os.path.join(project_root, PROJECT_NAME)
    with open(f"{os.path.dirname(config.__file__)}/template.toml", "rb") as file:
        data = file.read()
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
        return layer._replace(trusted=True)
    return _as_in_main(layer, content.data, root, own, trust) if kind == Kind.PROJECT else layer


def _same_place(path: str, root: str, main: str) -> bool:
    """Whether a path that leaves `root` upwards, and only upwards, means what it means from `main`."""
    parts = path.removeprefix(f"{root}/").split("/")
    ups = next(number for number, part in enumerate((*parts, "")) if part != "..")
    if not ups or ".." in parts[ups:] or not path.startswith(f"{root}/"):
        return False
    above = [where.split("/")[:-ups] for where in (root, main)]
    return above[0] == above[1] and len(above[0]) > 1


def _as_in_main(layer: Layer, content: bytes, root: str, own: Places, trust: Trust) -> Layer:
    """The same layer of a linked worktree, trusted if its content is trusted for the repository's main checkout.

    The content counts and not the worktree: an agent may have written the file, and can only write what was accepted.
    """
    main = main_checkout(root, own.state)
    if main is None:
        return layer
    rules = layer.content
    paths = (*rules.filesystem.read, *rules.filesystem.write, *rules.filesystem.deny)
    paths += tuple(own.home + name[1:] for name in rules.bring.files)
    for path in paths:
        # Behind .. may be what lies beside this worktree; and what lies in the main checkout is no further grant there.
        if ".." in path.split("/") and not _same_place(path, root, main):
            return layer._replace(elsewhere=path)
        where = os.path.normpath(path)
        if beneath(where, main) and not beneath(where, root):
            return layer._replace(elsewhere=path)
    file = os.path.join(main, PROJECT_NAME)
    if trust.is_trusted(file, content):
        return layer._replace(trusted=True)
    with suppress(Refusal):  # only to say what would help
        there = guarded_files.read(file, follow=False)
        return layer._replace(same_as=file if there is not None and there.data == content else "")
    return layer


def main_checkout(root: str, state: str) -> str | None:
    """Root of the main checkout, if `root` is a linked worktree that its git directory names, and no agent wrote it."""
    try:
        found = checkout.find(root, disk.Present(swap.originals(state)), exact=True)
    except Refusal:
        return None
    main, name = os.path.split(found.common_dir)
    own = found.kind == "linked" and name == ".git" and not written.agents_tree(found.common_dir, state)
    return main if own else None


def _explicit(config_file: str, root: str, own: Places, trust: Trust) -> Layer:
    trail = disk.Names().walk(os.path.abspath(config_file))
    canonical = trail.canonical
    trees = (root, *written.trees(own.state, os.path.abspath(config_file)))
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
    worktree_words.refuse_link(config_file, trail, canonical)
    _check_owner(canonical, content, (0, os.geteuid()))
    return parse(content.data, Kind.FILE, canonical, Base(root, own.home))


def missing(path: str) -> Refusal:
    """The Refusal for a configuration file that was named and is not there."""
    return Refusal("config-missing", f"{path} does not exist", hint="check the path")


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
