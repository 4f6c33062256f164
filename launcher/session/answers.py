"""What becomes of answers to questions about refused hosts, outside of the jail: "always" goes into the user's file.

Loaded with the first answer.
"""

import fcntl
import os
import re
import tomllib

from launcher.safefs import guarded_files, walk
from launcher.session.configuration import user_file
from launcher.session.places import Places, made
from launcher.vcs import written
from policy.asking import Question
from policy.errors import Refusal
from policy.plan import beneath

_FRESH = 'schema = 1\n\n[network]\nallow_domains = ["{rule}"]\n'
_TABLE = re.compile(r"^[ \t]*\[[ \t]*network[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*\[", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*allow_domains[ \t]*=[ \t]*\[", re.MULTILINE)


def allow_always(where: Places, worktree: str, question: Question) -> str:
    """Adds a host and port to `network.allow_domains` of the user's own configuration.

    Args:
        where: Paddock's own directories.
        worktree: of the session.
        question: that was answered.

    Returns:
        Why that was not possible, "" when it is done.
    """
    path = os.path.realpath(user_file(where))  # dotfile managers make it a link, which stays
    try:
        for tree in (worktree, *written.trees(where.state)):
            if beneath(path, tree):
                return f"{path} is in {tree}, where commands in jails write"
        made(where.config)
        lock = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = guarded_files.read(path, follow=False)
            if content is not None and content.owner != os.geteuid():
                return f"{path} belongs to user {content.owner}"
            before = content.data.decode() if content is not None else ""
            after = with_domain(before, question.where)
            if after is None:
                return f'add "{question.where}" to allow_domains under [network] in {path} yourself'
            if after != before:
                walk.replace(path, after.encode(), mode=content.mode & 0o777 if content is not None else 0o600)
        finally:
            os.close(lock)
    except (OSError, ValueError, Refusal) as error:
        return f"{path} cannot be changed: {getattr(error, 'strerror', None) or error}"
    return ""


def with_domain(text: str, rule: str) -> str | None:
    """A configuration with one more rule in `network.allow_domains`, all else as it was; None where that is unclear.

    The text is changed at one place, and read again: what it means must differ by that rule alone.
    """
    table = tomllib.loads(text)
    network = table.get("network", {})
    rules = network.get("allow_domains", []) if isinstance(network, dict) else None
    if not isinstance(rules, list):
        return None
    if rule in rules:
        return text
    if not text.strip():
        return _FRESH.format(rule=rule)
    header = _TABLE.search(text)
    if header is None:
        end = "" if text.endswith("\n") else "\n"
        changed = f'{text}{end}\n[network]\nallow_domains = ["{rule}"]\n'
    else:
        following = _NEXT.search(text, header.end())
        found = _LIST.search(text, header.end(), following.start() if following else len(text))
        at = found.end() if found else header.end()
        changed = text[:at] + (f'"{rule}", ' if found else f'\nallow_domains = ["{rule}"]') + text[at:]
    expected = {**table, "network": {**network, "allow_domains": [rule, *rules]}}
    try:
        return changed if tomllib.loads(changed) == expected else None
    except ValueError:
        return None
