"""The manual as a website: README and `docs/`, built by Sphinx, in which every link leads somewhere.

`python -m tests.support.site DIRECTORY [SOURCES]` (or `make site`) builds it. It can be read offline.
"""

import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx

from tests.support.manual import PAGES, README, ROOT

_SETTINGS = {
    "project": "Paddock",
    "extensions": ["myst_parser"],
    "root_doc": "README",
    "include_patterns": ["README.md", "docs/*.md", "systemd/README.md"],
    "myst_heading_anchors": 4,
    "myst_url_schemes": ["https"],
    "html_theme": "alabaster",
    "html_theme_options": {"page_width": "1200px", "body_max_width": "none", "fixed_sidebar": True},
    "html_sidebars": {"**": ["about.html", "navigation.html", "searchbox.html"]},
    "html_copy_source": False,
    "smartquotes": False,
}


def build(target: Path, sources: Path = ROOT) -> int:
    """Builds the site; 1 when a link leads nowhere, or something else is wrong with a page."""
    with tempfile.TemporaryDirectory(prefix="paddock-site-") as work:
        site = Sphinx(sources, None, target, work, "html", _SETTINGS, status=None, warningiserror=True)
        site.connect("source-read", _with_contents)
        site.build(force_all=True)
    (target / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n')
    return site.statuscode


def _with_contents(_site: Sphinx, page: str, source: list[str]) -> None:
    """On GitHub the front page's table leads to the pages; here the sidebar does, too."""
    if page == "README":
        names = [str(path.relative_to(ROOT)) for path in PAGES if path != README]
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", *names, "systemd/README.md", "```\n"])


if __name__ == "__main__":
    sys.exit(build(*(Path(word).absolute() for word in sys.argv[1:])))
