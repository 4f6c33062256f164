"""What client and agent are told of each other: only what holds with a jail in between.

Source: the protocol's `initialize` (https://agentclientprotocol.com/protocol/initialization); `terminal-auth` is the
name under which clients and agents agreed on logins in a terminal before the protocol had them.
"""

from typing import Any

TERMINAL_LOGIN = "terminal-auth"


def for_agent(params: dict[str, Any], *, files: bool, terminals: bool) -> dict[str, Any]:
    """The `initialize` request's parameters, as the agent gets them.

    Args:
        params: as the client gave them; not changed.
        files: the client's own offers of file access stand; else there are none.
        terminals: an offer of terminals stands, because the bridge serves them; else there are none.
    """
    given = params.get("clientCapabilities")
    offered: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    if not files:
        offered["fs"] = {"readTextFile": False, "writeTextFile": False}
    if not terminals:
        offered["terminal"] = False
    if isinstance(offered.get("auth"), dict):
        offered["auth"] = {**offered["auth"], "terminal": False}
    if isinstance(offered.get("_meta"), dict):
        offered["_meta"] = {name: value for name, value in offered["_meta"].items() if name != TERMINAL_LOGIN}
    return {**params, "clientCapabilities": offered}


def for_client(value: object) -> tuple[object, bool]:
    """A message of the agent's without what would let it choose a command that the client runs outside of the jail.

    A login "in a terminal" is one: arguments, environment and (`terminal-auth`) even the command come from the agent.
    They stand in `authMethods`, of the reply to `initialize` and of errors that ask for a login.

    Returns:
        The message, and whether it is another one than `value`.
    """
    if isinstance(value, list):
        items = [for_client(item) for item in value]
        changed = any(other for _, other in items)
        return ([item for item, _ in items], True) if changed else (value, False)
    if not isinstance(value, dict):
        return value, False
    changed = False
    result: dict[str, object] = {}
    for name, item in value.items():
        found, other = _logins(item) if name == "authMethods" else for_client(item)
        result[name] = found
        changed = changed or other
    return (result, True) if changed else (value, False)


def _logins(methods: object) -> tuple[object, bool]:
    if not isinstance(methods, list):
        return [], True
    kept: list[object] = []
    changed = False
    for method in methods:
        if not isinstance(method, dict) or method.get("type", "agent") not in ("agent", "env_var"):
            changed = True
            continue
        meta = method.get("_meta")
        if isinstance(meta, dict) and TERMINAL_LOGIN in meta:
            changed = True
            method = {**method, "_meta": {name: item for name, item in meta.items() if name != TERMINAL_LOGIN}}
        kept.append(method)
    return kept, changed
