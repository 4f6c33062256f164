"""Third-party packages, when they are needed at all.

The `paddock` script starts Python without `site` (`-I -S`), which halves the start-up time; the warm launch path needs
nothing but the standard library's core. Everything else calls `enable` before its first import of a package.
"""

import sys

_enabled = False


def enable() -> None:
    """Runs what `site` would have run at start: `.pth` files of the environment's own site-packages.

    Does nothing when the interpreter was started with `site`. The user's own site directory stays out (`-I`).
    """
    global _enabled
    if _enabled or not sys.flags.no_site:
        return
    import site

    known = list(sys.path)
    site.main()
    # `site.main` appends and makes entries absolute; what was first stays first.
    sys.path[:] = known + [entry for entry in sys.path if entry not in known]
    _enabled = True
