"""The two things of the user's own git configuration that worktrees need: what he ignores, and filters he asks for.

Everything else of it is left out, because it names programmes (`hardening`). Read as text; files that it includes are
not followed.
"""

from typing import NamedTuple

from launcher.vcs import git_config
from launcher.vcs.disk import Present

_MOST_BYTES = 1 << 20
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
    """The user's configuration.

    Args:
        home: his home directory.
        config_home: XDG_CONFIG_HOME.
    """
    excludes = f"{config_home}/git/ignore"  # git's own default
    filters: dict[tuple[str, str], str] = {}
    for path in (f"{config_home}/git/config", f"{home}/.gitconfig"):
        for section, driver, name, value in git_config.entries(Present().read(path, _MOST_BYTES) or b""):
            if (section, driver, name) == ("core", "", "excludesfile"):
                excludes = f"{home}{value[1:]}" if value.startswith("~/") else value
            elif section == "filter" and driver and name in _FILTER_KEYS:
                filters[driver, name] = value
    return UserConfig(
        (("core.excludesFile", excludes),),
        tuple((driver, (f"filter.{driver}.{name}", value)) for (driver, name), value in filters.items()),
    )
