"""A git configuration file, read as text: for the few variables that say what kind of repository this is.

Files that others are included from, and conditions, are git's business: what is asked here counts only in the file of
the repository itself (git-config(1); Documentation/technical/repository-version).
"""

import os


def entries(content: bytes) -> list[tuple[str, str, str, str]]:
    """All variables in order, as (section, subsection, name, value): section and name in small letters."""
    found: list[tuple[str, str, str, str]] = []
    section = subsection = ""
    lines = iter(os.fsdecode(content).split("\n"))
    for raw in lines:
        line = raw.strip()
        if line.startswith("["):
            head, _, line = line[1:].partition("]")
            section, space, quoted = head.partition(" ")
            if not space:
                section, _, subsection = section.partition(".")
            else:
                subsection = quoted.strip().strip('"').replace('\\"', '"').replace("\\\\", "\\")
            section, line = section.lower(), line.strip()
        if not line or line[0] in "#;":
            continue
        while line.endswith("\\") and not line.endswith("\\\\"):
            line = line[:-1] + next(lines, "").strip()
        name, equals, value = line.partition("=")
        found.append((section, subsection, name.strip().lower(), _plain(value.strip()) if equals else "true"))
    return found


def _plain(value: str) -> str:
    """A value without quotes and without the comment behind it."""
    result = ""
    quoted = False
    at = 0
    while at < len(value):
        char = value[at]
        if char == "\\" and at + 1 < len(value):
            at += 1
            result += {"n": "\n", "t": "\t", "b": "\b"}.get(value[at], value[at])
        elif char == '"':
            quoted = not quoted
        elif char in "#;" and not quoted:
            return result.rstrip()
        else:
            result += char
        at += 1
    return result
