"""Lists for people: a heading, then a line for each thing."""

from collections.abc import Iterable, Sequence

from policy.errors import printable


def some(names: Sequence[str], count: int) -> str:
    """The first of `count` things by name, and how many more there are."""
    return ", ".join(names) + (f" and {count - len(names)} more" if count > len(names) else "")


def lines(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as what is in them, the heading first; the last column is as long as it likes.

    Args:
        heading: names of the columns, in capitals.
        rows: a cell for each column. Control characters are made visible; an empty cell is shown as ``-``.
    """
    cells = [list(heading), *([printable(str(cell)) or "-" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading) - 1)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    ]
