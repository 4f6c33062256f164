"""Whether any installed package brings a provider, without importing what would load it."""

import os
from collections.abc import Iterable

GROUP = "paddock.providers"
"""The entry point group of plug-ins."""


def installed(path: Iterable[str]) -> bool:
    """Whether an installed distribution below one of these directories declares an entry point of our group.

    Looks for the group's name in ``*.dist-info/entry_points.txt`` (entry points specification, PyPA): a millisecond,
    where `importlib.metadata` costs forty.

    Args:
        path: directories, as in `sys.path`.
    """
    heading = f"[{GROUP}]".encode()
    for directory in path:
        try:
            names = [name for name in os.listdir(directory or ".") if name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue  # a zip file, or an entry that leads nowhere
        for name in names:
            try:
                with open(f"{directory}/{name}/entry_points.txt", "rb") as file:
                    if heading in file.read(1 << 20):
                        return True
            except OSError:
                continue  # most have none
    return False
