"""`paddock help TOPIC`: the manual's pages, which are built into the wheel, as text for a terminal."""

import re
from difflib import get_close_matches
from pathlib import Path

from launcher import cli
from launcher.session import messages
from launcher.verbs import style
from policy.errors import Refusal

_HERE = Path(__file__).parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_HEADING = re.compile(r"(#+) (.*)")


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
    text = "\n".join(_plain(known[topic].read_text(encoding="utf-8")))

    def action() -> int:
        messages.show(text)
        return 0

    return style.paged(action)


def _plain(text: str) -> list[str]:
    """Markdown as a terminal shows it: headings stand out, links say where they lead, examples stay as they are."""
    lines: list[str] = []
    example = False
    for line in text.splitlines():
        if line.startswith("```"):
            example = not example
        elif example:
            lines.append(f"    {line}")
        elif line.startswith("<!--"):
            continue
        elif found := _HEADING.fullmatch(line):
            title = found[2]
            lines.append(title.upper() if len(found[1]) == 1 else title)
            lines += ["-" * len(title)] if len(found[1]) == 2 else []
        else:
            lines.append(_LINK.sub(_linked, line).replace("**", "").replace("`", ""))
    return lines


def _linked(found: "re.Match[str]") -> str:
    words, target = found[1].replace("`", ""), found[2]
    page = target.partition("#")[0].removesuffix(".md").rpartition("/")[2]
    if target.startswith("http"):
        return f"{words} ({target})"
    name = f"{page}.md" if page in cli.VERBS else page
    return f"{words} (paddock help {name})" if name in names() and page != words else words
