"""What `docs/` says of options, verbs, promises and agents, rendered from the programme's own tables.

`python -m tests.support.man_pages` (or `make docs`) writes it there, and the man pages; a test compares.
"""

from pathlib import Path

from launcher import cli
from launcher.verbs import forms
from policy import promises
from policy.providers.registry import load_registry

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
"""What users read beside the man pages and `--help`."""


def promise_table() -> str:
    """The promises as a Markdown table, one column per backend, with the reasons below."""
    lines = ["| row | promise | " + " | ".join(promises.BACKENDS) + " |", "|---|---|" + "---|" * len(promises.BACKENDS)]
    reasons: list[str] = []
    for name, promise, _ in promises.ROWS:
        cells = []
        for backend in promises.BACKENDS:
            verdict, reason = promises.verdict(name, backend)
            cells.append("held" if verdict == promises.HELD else "**not held**")
            if reason:
                reasons.append(f"- `{name}` on {backend}: {reason}.")
        lines.append(f"| `{name}` | {promise} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *reasons])


def promise_list() -> str:
    """The promises as a short Markdown table: a star where the guard does not hold one."""
    lines = ["| row | promise |", "|---|---|"]
    for name, promise, _ in promises.ROWS:
        lines.append(
            f"| `{name}`{'' if promises.verdict(name, promises.GUARD)[0] == promises.HELD else ' *'} | {promise} |"
        )
    return "\n".join(lines)


def option_table() -> str:
    """The launch options as a Markdown table, in groups."""
    lines = ["| option | meaning |", "|---|---|"]
    for title, rows in forms.grouped():
        lines.append(f"| **{title}** | |")
        for row in rows:
            shown = forms.notation(row).replace("|", "\\|")
            lines.append(f"| `{shown}` | {row.about} |")
    return "\n".join(lines)


def verb_table() -> str:
    """The verbs as a Markdown table, in groups."""
    lines = ["| verb | what it does |", "|---|---|"]
    for title, verbs in forms.VERB_GROUPS:
        lines.append(f"| **{title}** | |")
        lines += [f"| `paddock {name}` | {cli.VERBS[name]} |" for name in verbs]
    return "\n".join(lines)


def provider_table() -> str:
    """The built-in providers as a Markdown table."""
    lines = ["| provider | agent | recognised by | own sandbox, own questions |", "|---|---|---|---|"]
    known = load_registry()
    for name in known.names():
        spec = known.spec(name)
        assert spec is not None
        words = ", ".join(f"`{word}`" for word in (*spec.commands, *spec.adapters) if not word.startswith("@"))
        off = [
            " ".join((*(f"`{key}={value}`" for key, value in switch.environment.items()),
                      *((f"`{' '.join(switch.arguments)}`",) if switch.arguments else ())))
            or "none"
            for switch in (spec.native.sandbox_off, spec.native.prompts_off)
        ]  # fmt: skip
        lines.append(f"| `{name}` | {spec.title} | {words} | {'; '.join(off)} |")
    return "\n".join(lines)


TABLES = {
    "README.md": {"promised": promise_list},
    "docs/providers.md": {"providers": provider_table},
    "docs/reference.md": {"verbs": verb_table, "options": option_table},
    "docs/security.md": {"promises": promise_table},
}
"""The pages that hold generated tables, and the functions that make these."""


def documentation() -> str:
    """README and all pages of `docs/`, one after the other."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def with_tables(page: str, text: str) -> str:
    """`text`, which is that of `page`, with each of its generated tables made anew between the table's two marks."""
    for name, render in TABLES[page].items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->\n")
        if not begin or not end:
            raise ValueError(f"{page} has no table {name}")
        text = before + begin + render() + "\n" + end + after
    return text
