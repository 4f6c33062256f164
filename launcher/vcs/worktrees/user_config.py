"""The two things of the user's own git configuration that worktrees need: what he ignores, and filters he asks for.

Everything else of it is left out, because it names programmes (`hardening`), and so is what an agent could write. Read
as text; conditions of includes count as not met.
"""

import os
from typing import NamedTuple

from launcher.vcs import git_config, written
from launcher.vcs.disk import Seen
from policy.launch import Trail

_FILTER_KEYS = ("clean", "smudge", "process", "required")


class UserConfig(NamedTuple):
    """Settings for `Git(settings=...)`.

    Attributes:
        ignores: ``core.excludesFile``: what does not count as untracked.
        filters: the `filter` drivers, as (name of the driver, setting).
    """

    ignores: tuple[tuple[str, str], ...] = ()
    filters: tuple[tuple[str, tuple[str, str]], ...] = ()

    def of_filters(self, wanted: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """The settings of these drivers."""
        return tuple(setting for name, setting in self.filters if name in wanted)


def read(home: str, config_home: str) -> UserConfig:
    """The user's configuration; nothing that an agent could write, or that a link of an agent's leads to.

    Args:
        home: his home directory.
        config_home: XDG_CONFIG_HOME.
    """
    excludes = f"{config_home}/git/ignore"  # git's own default
    filters: dict[tuple[str, str], str] = {}
    files = Seen()

    def agents(trail: Trail) -> bool:
        return bool(written.tree_of(trail))

    reader = git_config.Reader(files, home, agents=agents, holds=lambda condition, file: False)
    for path in (f"{config_home}/git/config", f"{home}/.gitconfig"):
        for entry in reader.file(path):
            value = "true" if entry.value is None else entry.value
            if not entry.own:
                continue
            if entry.key == "core.excludesfile":
                excludes = git_config.expanded(value, home, "")
            elif entry.section == "filter" and entry.subsection and entry.name in _FILTER_KEYS:
                filters[entry.subsection, entry.name] = value
    # What is ignored is removed with a worktree.
    if not excludes.startswith("/") or agents(files.trail(excludes)):
        excludes = os.devnull
    return UserConfig(
        (("core.excludesFile", excludes),),
        tuple((driver, (f"filter.{driver}.{name}", value)) for (driver, name), value in filters.items()),
    )
