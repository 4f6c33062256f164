"""Pictures of measurements, as SVG on a background of their own: horizontal bars, and tables of coloured words.

A picture is one element with a width and a height, so several stand below each other in another.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH = 960
_LETTER = 8  # of 14px sans-serif, with room to spare: nobody measures text here
_ROW = 24
_MARGIN = 20
_STYLE = (
    "text{font:14px sans-serif;fill:#e6e6e6}.title{font-weight:bold}.dim{fill:#aab4c3}.ours{fill:#7fd1b9}"
    ".bad{fill:#f0858d}.bar{fill:#8a97ab}.bar.ours{fill:#7fd1b9}.spread{stroke:#e6e6e6;stroke-width:1.5}.end{text-anchor:end}"
)


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart.

    Args:
        name: what was measured.
        value: how long the bar is; None where there is nothing to show but the note.
        spread: as much to each side of the bar's end.
        ours: drawn in another colour.
        note: shown behind the value, or in place of it.
    """

    name: str
    value: float | None
    spread: float = 0.0
    ours: bool = False
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One word of a table; the tone is "" (plain), "dim", "ours" or "bad"."""

    text: str
    tone: str = ""


def bars(title: str, rows: Sequence[Bar], unit: str) -> str:
    """A picture of horizontal bars from zero, each with its value and unit behind it."""
    left = _MARGIN + max((len(row.name) for row in rows), default=0) * _LETTER + 10
    behind = max((len(_worded(row, unit)) for row in rows if row.value is not None), default=0) * _LETTER + 20
    longest = max((row.value + row.spread for row in rows if row.value is not None), default=0) or 1
    scale = max(WIDTH - _MARGIN - left - behind, 100) / longest
    body = []
    for number, row in enumerate(rows):
        y = 52 + number * _ROW
        body.append(_text(_MARGIN, y + 13, row.name, "ours" if row.ours else ""))
        if row.value is None:
            body.append(_text(left, y + 13, row.note, "dim"))
            continue
        end = left + row.value * scale
        shade = "bar ours" if row.ours else "bar"
        body.append(
            f'<rect class="{shade}" x="{left:.1f}" y="{y}" width="{row.value * scale:.1f}" height="16" rx="2"/>'
        )
        reach = row.spread * scale
        if reach:
            start = max(end - reach, left)
            body.append(f'<path class="spread" d="M{start:.1f} {y + 8}H{end + reach:.1f}"/>')
        body.append(_text(end + reach + 8, y + 13, _worded(row, unit)))
    return _picture(title, body, 60 + len(rows) * _ROW)


def matrix(title: str, heading: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A picture of a table: the first column begins at the left, the others end at the right."""
    columns = [max(len(text), *(len(row[at].text) for row in rows)) for at, text in enumerate(heading)]
    room = (WIDTH - 2 * _MARGIN - columns[0] * _LETTER) / max(len(columns) - 1, 1)
    ends = [columns[0] * _LETTER + _MARGIN + room * at for at in range(len(columns))]
    body = []
    for number, row in enumerate([[Cell(text, "dim") for text in heading], *rows]):
        y = 64 + number * _ROW
        for at, cell in enumerate(row):
            body.append(_text(ends[at] if at else _MARGIN, y, cell.text, f"{cell.tone}{' end' if at else ''}"))
    return _picture(title, body, 60 + (len(rows) + 1) * _ROW)


def stacked(title: str, pictures: Sequence[str]) -> str:
    """Several pictures below each other, as one."""
    body, y = [], 0
    for each in pictures:
        found = re.match(r'<svg [^>]*height="(\d+)"', each)
        assert found, "a picture of this module begins with its size"
        body.append(each.replace("<svg ", f'<svg y="{y}" ', 1).replace(f"<style>{_STYLE}</style>\n", ""))
        y += int(found[1])
    return _framed(title, body, y)


def write(path: Path, svg: str) -> None:
    """Puts a picture where a page shows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg + "\n", encoding="utf-8")


def _worded(row: Bar, unit: str) -> str:
    number = f"{row.value:.2f}" if (row.value or 0) < 10 else f"{row.value:.0f}"
    return " ".join(word for word in (number, unit, row.note) if word)


def _text(x: float, y: float, text: str, shade: str = "") -> str:
    named = f' class="{shade.strip()}"' if shade.strip() else ""
    return f'<text x="{x:.0f}" y="{y}"{named}>{escape(text)}</text>'


def _picture(title: str, body: Sequence[str], height: int) -> str:
    return _framed(title, [_text(_MARGIN, 32, title, "title"), *body], height)


def _framed(title: str, body: Sequence[str], height: int) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#1d2430"/>',
            *body,
            "</svg>",
        ]
    )
