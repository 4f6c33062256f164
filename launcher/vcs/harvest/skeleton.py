"""The empty repository in which jailed git commands work: ours, without refs, hooks or any setting but the format."""

import os

_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
_CONFIG_SHA256 = (
    "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"  # git-config(1)
)


def make(path: str, digits: int) -> str:
    """Makes it anew at `path`, whose directory is ours alone; returns `path`.

    Args:
        path: absolute.
        digits: length of an object id.
    """
    for name in ("objects", "refs"):
        os.makedirs(f"{path}/{name}", 0o700, exist_ok=True)
    for name, content in (("HEAD", "ref: refs/heads/none\n"), ("config", _CONFIG if digits == 40 else _CONFIG_SHA256)):
        with open(f"{path}/{name}", "w", encoding="ascii") as file:
            file.write(content)
    return path
