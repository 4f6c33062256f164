"""From the quarantine into the main object store: packs that have passed every check."""

import os
from collections.abc import Callable

from launcher.vcs.quarantine.record import sync_directory

_ORDER = (".pack", ".rev", ".idx")
"""The index comes last: a pack without one does not exist for git."""


def migrate(quarantine: str, common: str, step: Callable[[str], None]) -> None:
    """Adds the packs in a quarantine to an object store. May be repeated after a crash, at any point.

    Args:
        quarantine: as `index-pack` left it.
        common: the trusted repository.
        step: told what comes next.

    Raises:
        OSError: the store cannot be written.
    """
    source, target = f"{quarantine}/pack", f"{common}/objects/pack"
    names = [name for name in _names(source) if name.startswith("pack-") and name.endswith(_ORDER)]
    if not names:
        return
    os.makedirs(target, exist_ok=True)
    # As readable as the store itself (core.sharedRepository), and for nobody to write.
    mode = 0o444 & os.stat(target).st_mode
    names.sort(key=lambda name: _ORDER.index(name[name.rindex(".") :]))
    for name in names:
        if not os.path.lexists(f"{target}/{name}"):
            step(f"add {name}")
            _copy(f"{source}/{name}", target, name, mode)
    sync_directory(target)


def _copy(source: str, directory: str, name: str, mode: int) -> None:
    # git's own name for a pack that is not finished: `git gc` removes it when it is left.
    temporary = f"{directory}/tmp_pack_{os.urandom(8).hex()}"
    # What git in its jail has left there: a file, or it is refused (ELOOP).
    with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as reader:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(reader.fileno()).st_size
            offset = 0
            while offset < size:
                offset += os.sendfile(descriptor, reader.fileno(), offset, size - offset)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            os.rename(temporary, f"{directory}/{name}")
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
