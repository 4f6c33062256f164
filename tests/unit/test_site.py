"""The manual as a website: it is built from the pages as they are, strictly, and needs nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.manual import PAGES, ROOT


def built(target: Path, *sources: Path) -> "subprocess.CompletedProcess[str]":
    """Builds it in a process of its own, because docutils keeps what it was told for all later documents."""
    words = [sys.executable, "-m", "tests.support.site", str(target), *map(str, sources)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_site_is_whole_and_stands_by_itself(tmp_path: Path) -> None:
    """Each page is there and in the sidebar; no page loads anything from another host."""
    ended = built(tmp_path / "site")
    assert ended.returncode == 0, ended.stderr
    front = (tmp_path / "site/README.html").read_text()
    for page in PAGES:
        name = page.relative_to(ROOT).with_suffix(".html")
        html = (tmp_path / "site" / name).read_text()
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', html)
        assert f'href="{name}"' in front or name.name == "README.html"
    assert not [style for style in (tmp_path / "site/_static").glob("*.css") if "url(http" in style.read_text()]
    assert "README.html" in (tmp_path / "site/index.html").read_text()


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    """To a page, or to a heading: each is named. Of the pages that are there, one is enough."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/git.md", tmp_path / "docs")
    broken = ("docs/no-such-page.md", "docs/git.md#no-such-heading")
    (tmp_path / "README.md").write_text("# Paddock\n\n" + "\n".join(f"[broken]({target})" for target in broken))
    ended = built(tmp_path / "site", tmp_path)
    assert ended.returncode != 0
    assert "no-such-page" in ended.stderr
    assert "no-such-heading" in ended.stderr
