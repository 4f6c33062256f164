"""HTML from templates, in which everything that anybody wrote is text: escaped, bounded, and every character visible.

All that a template prints goes through `shown`, so none can forget to. Only what this package itself made is markup.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from launcher.service.page.admission import FIELD, Visit
from policy import asking
from policy.errors import Refusal, printable
from policy.pasted import cited

ROOT = Path(__file__).resolve().parent
MOST_SHOWN = 2_000
"""Characters of a text where a template says nothing else."""


def visible(text: str, most: int = MOST_SHOWN) -> str:
    """A text of an agent's on one line, as a person can see all of it: what is `unseen` becomes escapes.

    Spaces stay: a row of a page is no line. What is longer than `most` characters ends with how many bytes it goes on.
    """
    rest = text[most:]
    text = printable(text[:most], most)
    return f"{text} … {len(rest.encode(errors='surrogatepass'))} more bytes" if rest else text


def visible_lines(text: str, most: int = 64 << 10) -> str:
    """The same, of a text whose line ends and tabs mean what they do."""
    kept, rest = text[:most], text[most:]
    lines = ("\t".join(visible(part, most) for part in line.split("\t")) for line in kept.split("\n"))
    more = f" … {len(rest.encode(errors='surrogatepass'))} more bytes" if rest else ""
    return "\n".join(lines) + more


class Shown(str):
    """A text that is visible already; it is still escaped."""

    __slots__ = ()


def shown(value: object) -> object:
    """What a template prints for a value."""
    if isinstance(value, Markup | Shown):
        return value
    return "" if value is None else visible(str(value))


def path(*parts: object, **query: object) -> Shown:
    """An address on the page: `/part/part?name=value`, each part one segment whatever is in it."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    segments = "/".join(quote(str(part), safe="") for part in parts)
    return Shown(f"/{segments}" + (f"?{urlencode(given, quote_via=quote)}" if given else ""))


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "K", "M", "G"):
        if number < 1024:
            return f"{number:.0f}{unit}" if unit == "B" or number >= 10 else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}T"


def span(seconds: float) -> str:
    """Seconds for people."""
    for unit, long in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < long:
            return f"{max(0, seconds):.0f} {unit}"
        seconds /= long if unit != "h" else 24
    return f"{seconds:.0f} d"


def ago(time_of: object) -> str:
    """A time as ledgers have it, for people; "" for what is none: an agent's words may be in a ledger."""
    try:
        then = datetime.fromisoformat(str(time_of)).timestamp()
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{span(time.time() - then)} ago"


def graph(values: Sequence[float], most: float, label: str) -> Markup:
    """A line of values, the newest at the right, as an image of 100 by 20.

    Args:
        values: at most some hundred.
        most: what the top stands for, unless a value is larger.
        label: what it shows, for who cannot see it.
    """
    values = [*values, *values] if len(values) == 1 else values  # one point alone is no line
    top = max(most, *values, 1e-9) if values else 1
    step = 100 / max(1, len(values) - 1)
    points = " ".join(f"{at * step:.1f},{19 - 18 * value / top:.1f}" for at, value in enumerate(values))
    return Markup('<svg class="graph" viewBox="0 0 100 20" role="img" aria-label="{}"><polyline points="{}"/></svg>'
                  ).format(visible(label), points)  # fmt: skip


def pieces(line: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """A line of a diff in stretches: the letter of a colour, "" for none, and text (`patches.shade`)."""
    at = 0
    for length, letter in line[6] if len(line) > 6 else [(len(line[3]), "")]:
        yield letter, line[3][at : at + length]
        at += length


@cache
def environment() -> Environment:
    """The templates of this package."""
    made = Environment(
        loader=FileSystemLoader(ROOT / "templates"), autoescape=True, finalize=shown, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "lines": lambda text, most=64 << 10: Shown(visible_lines(text, most)),
        "cut": lambda text, most: Shown(visible(str(text), most)),
        "size": size,
        "span": span,
        "ago": ago,
        "cited": cited,
    }
    made.globals |= {
        "path": path, "graph": graph, "FIELD": FIELD, "pieces": pieces,
        "SECONDS": asking.SECONDS, "AGAIN_SECONDS": asking.AGAIN_SECONDS, "RISK": asking.RISK,
    }  # fmt: skip
    return made


PAGES = (
    ("Sessions", "/"), ("Denials", "/denials"), ("Worktrees", "/worktrees"), ("Merges", "/merges"),
    ("Tickets", "/tickets"), ("Health", "/health"),
)  # fmt: skip
"""What the navigation leads to: name and address."""


def macros(template: str, visit: Visit) -> Any:  # noqa: ANN401  # attributes are the template's
    """The macros of a template: each makes a part of a page, that takes the place of its former self."""
    return environment().get_template(template).make_module({"visit": visit})


def page(request: Request, template: str, /, status: int = 200, **content: Any) -> HTMLResponse:  # noqa: ANN401
    """A whole page; `content` is what its template knows."""
    visit: Visit = request.scope["state"]["visit"]
    asked = request.app.state.tabs.watcher.asked
    text = (
        environment()
        .get_template(template)
        .render(visit=visit, here=request.url.path, pages=PAGES, asked=asked, content=content, **content)
    )
    return HTMLResponse(text, status)


def refusal_page(refusal: Refusal, _status: int = 0) -> tuple[bytes, bytes]:
    """What somebody sees who is not let in: media type and body. Nothing that the service knows is in it."""
    text = environment().get_template("error.html").render(refusal=refusal, visit=None, pages=(), asked=0, here="")
    return b"text/html; charset=utf-8", text.encode()
