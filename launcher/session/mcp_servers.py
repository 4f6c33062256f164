"""What a Plan brings besides files, in words: the MCP servers of the user's agent, and what they lack in the jail.

Not on the launch path: for `paddock explain` and --verbose. Only the user's own files are read.
"""

import os
import re
import shutil
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from launcher.safefs import walk
from launcher.session import credentials
from policy import logins, remedy, verdict
from policy.logins import Login
from policy.pasted import quoted
from policy.plan import Plan

_SECRET = re.compile("(?i)key|token|secret|passw|pwd|auth|sig|cred|session|code|jwt|bearer")
"""Names of what is no address (RFC 3986, section 3.4)."""


def lines_of(plan: Plan) -> list[str]:
    """The MCP servers that a plan brings, one a line: what of the user's goes with each, what it lacks in the jail."""
    lines = []
    for login in (Login(*fields) for fields in cast("tuple[Any, ...]", plan.logins)):
        if not login.brought:
            continue
        try:
            data = walk.read_regular(login.host, credentials.LARGEST_COPY, follow=True)
        except OSError:
            continue  # many have no such file
        document = (logins.parsed_toml if login.toml else logins.parsed)(data or b"")
        if document is None:
            lines.append(f"server    none: {login.host} cannot be read, so nothing of it is brought")
            continue
        for path in login.brought:
            found = logins.at(document, path)
            if isinstance(found, list):
                found = {str(each.get("name")): each for each in found if isinstance(each, dict)}
            for name, server in found.items() if isinstance(found, dict) else ():
                if isinstance(server, dict):
                    lines.append(f"server    {name}  [{'; '.join((login.host, *_about(server, plan)))}]")
    return lines


def _about(server: dict[str, Any], plan: Plan) -> list[str]:
    about = []
    secrets = [key for name in ("env", "environment", "headers", "http_headers") for key in server.get(name) or ()]
    if secrets:
        about.append(f"with your values of {', '.join(map(str, secrets))}")
    words = server.get("command")
    command = words[0] if isinstance(words, list) and words else words
    if isinstance(command, str) and command:
        path = shutil.which(command)
        if path is None or "x" not in verdict.decide(plan, os.path.realpath(path)).access:
            about.append(f"its command {command} is not in the jail" + (f": --ro {quoted(path)}" if path else ""))
    url = next((server[name] for name in ("url", "httpUrl", "serverUrl") if isinstance(server.get(name), str)), "")
    if inside := _secrets_of_url(url):
        about.append(f"with your {inside} in its address")
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        answer = remedy.decide_host(plan, parts.hostname or "", port)
    except (KeyError, ValueError):
        return about
    return about if answer.allowed else [*about, f"its host is out of reach: {answer.remedy.flag}"]


def _secrets_of_url(url: str) -> str:
    """What of a URL looks like a secret, by its names alone; "" for nothing."""
    try:
        parts = urlsplit(url)
        asked = [name for name, value in parse_qsl(f"{parts.query}&{parts.fragment}") if value and _SECRET.search(name)]
    except ValueError:
        return ""
    return ", ".join([*(["user name and password"] if "@" in parts.netloc else []), *asked])
