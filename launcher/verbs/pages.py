"""`paddock help TOPIC`: the manual's pages, which are built into the wheel, as text for a terminal."""

import os
import re
import textwrap
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path

from launcher import cli
from launcher.session import messages
from launcher.verbs import style
from policy.errors import Refusal

_HERE = Path(__file__).parent.parent
_HEADING = re.compile(r"(#+) (.*)")
_ITEM = re.compile(r"( *)(?:-|\d+\.) +(?=\S)")
_BAR = re.compile(r"(?<!\\)\|")
_MARKED = re.compile(
    r"`(?P<code>[^`]+)`|!\[(?P<image>[^\]]*)\]\([^)]*\)|\[(?P<words>[^\]]+)\]\((?P<target>[^)]+)\)"
    r"|\*\*(?P<strong>.+?)\*\*|\*(?P<stressed>\w[^*]*)\*|\\(?P<char>\W)"
)
_WIDEST, _NARROWEST = 100, 24
"""Columns of a page, and of a column of a table that wraps."""


def topics() -> dict[str, Path]:
    """Name of each page of the manual -> its file: beside the package where it is installed, else in the sources."""
    built = _HERE / "docs"
    return {page.stem: page for page in sorted((built if built.is_dir() else _HERE.parent / "docs").glob("*.md"))}


def names() -> list[str]:
    """What `paddock help` calls the pages: a verb's name alone means the verb."""
    return [f"{name}.md" if name in cli.VERBS else name for name in topics()]


def show(topic: str) -> int:
    """Prints a page; exit status 0.

    Raises:
        Refusal: usage: there is neither such a page nor such a verb.
    """
    known = topics()
    topic = topic.removesuffix(".md")  # which tells the page on the service from the verb
    if topic not in known:
        near = get_close_matches(topic, (*known, *cli.VERBS), n=1)
        raise Refusal(
            "usage",
            f"no help page {topic}",
            context=f"did you mean {near[0]}?" if near else "pages: " + ", ".join(names()),
            hint="paddock help lists the verbs; paddock help VERB, or paddock help PAGE",
        )
    width = min(os.get_terminal_size(1).columns, _WIDEST) if os.isatty(1) else 80
    text = "\n".join(plain(known[topic].read_text(encoding="utf-8"), width))

    def action() -> int:
        messages.show(text)
        return 0

    return style.paged(action)


def plain(text: str, width: int) -> list[str]:
    """Markdown as a terminal shows it: text and tables fit into `width`, examples stay as they are."""
    lines: list[str] = []
    waiting: list[str] = []  # the lines of a table, or of a paragraph or list item
    example = False

    def put() -> None:
        if waiting and waiting[0].startswith("|"):
            lines.extend(_table([_cells(line) for line in waiting], width))
        elif waiting and (item := _ITEM.match(waiting[0])):
            lines.extend(_wrapped(_inline(" ".join(map(str.strip, waiting))), width, item[1], " " * len(item[0])))
        elif waiting:
            lines.extend(_wrapped(_inline(" ".join(waiting)), width))
        waiting.clear()

    for line in [*text.splitlines(), ""]:
        fence = line.lstrip().startswith("```")
        heading = None if example else _HEADING.fullmatch(line)
        if fence or example or heading or not line or line.startswith("<!--") or _ITEM.match(line):
            put()
        if fence:
            example = not example
        elif example:
            lines.append(f"    {line}" if line else "")
        elif heading:
            title = _inline(heading[2])
            lines.append(title.upper() if len(heading[1]) == 1 else title)
            lines += ["-" * len(title)] if len(heading[1]) == 2 else []
        elif not line:
            lines += [""] if lines and lines[-1] else []
        elif not line.startswith("<!--"):
            waiting.append(line)
    return lines[:-1]


def _inline(text: str) -> str:
    """Text without marks: links say where they lead, and what is code stays as it is."""
    return _MARKED.sub(_unmarked, text)


def _unmarked(found: re.Match[str]) -> str:
    if found["words"] is not None:
        return _linked(_inline(found["words"]), found["target"])
    return found["code"] or found["image"] or _inline(found["strong"] or found["stressed"] or "") or found["char"] or ""


def _linked(words: str, target: str) -> str:
    page = target.partition("#")[0].removesuffix(".md").rpartition("/")[2]
    if target.startswith("http"):
        return f"{words} ({target})"
    name = f"{page}.md" if page in cli.VERBS else page
    return f"{words} (paddock help {name})" if name in names() and page != words else words


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def _cells(line: str) -> list[str]:
    return [_inline(cell.strip().replace("\\|", "|")) for cell in _BAR.split(line.strip())[1:-1]]


def _table(rows: list[list[str]], width: int) -> list[str]:
    """A table in columns; where these would be too narrow, each row as a heading with the other cells below it."""
    heading, _, *rows = rows  # the second line is the ruler
    full = [heading, *(row for row in rows if any(row[1:]))]
    columns = list(zip(*full, strict=True))
    widths = [max(map(len, column)) for column in columns]
    least = [
        max(min(natural, _NARROWEST), *(len(word) for cell in column for word in cell.split()))
        for column, natural in zip(columns, widths, strict=True)
    ]
    least[0] = widths[0]  # what begins a row stays on one line
    while sum(widths) + 2 * len(widths) - 2 > width and widths != least:
        room = [have - need for have, need in zip(widths, least, strict=True)]
        widths[room.index(max(room))] -= 1
    if sum(widths) + 2 * len(widths) - 2 > width:
        return _definitions(heading, rows, width)
    lines = []
    for row in [heading, ["-" * each for each in widths], *rows]:
        if not any(row[1:]):
            lines += ["", row[0]]  # a title between rows
            continue
        parts = [_wrapped(cell, room) for cell, room in zip(row, widths, strict=True)]
        lines += [
            "  ".join(f"{part:<{room}}" for part, room in zip(line, widths, strict=True)).rstrip()
            for line in zip_longest(*parts, fillvalue="")
        ]
    return lines


def _definitions(heading: list[str], rows: list[list[str]], width: int) -> list[str]:
    two = len(heading) == 2  # then what is below needs no name
    title = _wrapped(": ".join(heading) if two else heading[0], width)
    lines = [*title, "-" * max(map(len, title))]
    for first, *others in rows:
        lines += _wrapped(first, width) if any(others) else ["", first]
        for name, cell in zip(heading[1:], others, strict=True):
            lines += _wrapped(cell if two else f"{name}: {cell}", width, "    ", "    ") if cell else []
    return lines
