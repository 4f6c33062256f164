"""How Paddock starts further processes of its own: by the path of `launcher.helper`, which says what there is.

By path, because `-I` knows no other directory than Python's own: neither an environment nor the current directory,
where agents write, is asked for anything.
"""

import sys

HELPER = f"{__file__.rpartition('/')[0]}/helper.py"


def helper(programme: str, *arguments: str, site: bool = True) -> list[str]:
    """The words that start a programme of `launcher.helper`.

    Args:
        site: it needs packages of the environment from its start on.
    """
    return [sys.executable, "-I", *(() if site else ("-S",)), HELPER, programme, *arguments]


def paddock(*words: str) -> list[str]:
    """The words that start another command line of this installation, as fast as the `paddock` script does."""
    return helper("paddock", sys.prefix, *words, site=False)
