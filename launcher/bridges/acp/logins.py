"""Logins: which of them a client is offered, and what to do where there is none.

Source: the protocol's authentication (https://agentclientprotocol.com/protocol/initialization). `terminal-auth` is the
name under which clients and agents agreed on logins in a terminal before the protocol had them; Qwen Code says what
the protocol has now (`type`, `args`, `env`) in a method's `_meta`.
"""

from typing import Any

from launcher.bridges.acp import rpc
from policy.logins import Login
from policy.plan import Plan

TERMINAL_LOGIN = "terminal-auth"

_COMMAND = ("type", "command", "args", "env")


def advised(message: dict[str, Any], plan: Plan) -> tuple[dict[str, Any], bool]:
    """An agent's answer that it needs a login, with what its user can do about that; and whether it is another one.

    Most ways to log in need a browser or a terminal outside of the jail, so there may be none among those on offer.
    """
    error = message.get("error")
    if not isinstance(error, dict) or error.get("code") != rpc.AUTH_REQUIRED:
        return message, False
    text = str(error.get("message", "")) or "Authentication required"
    return {**message, "error": {**error, "message": f"{text.rstrip('.')}. {_advice(plan)}"}}, True


def _advice(plan: Plan) -> str:
    if not plan.provider:
        return (
            "Paddock does not know this agent, so none of your logins is in its jail: --provider NAME says which it is"
        )
    fields: Any = plan.logins
    if any(login.host and not login.kept_out for login in (Login(*data) for data in fields)):
        return "In a jail: log in once without Paddock, then start the agent again, and the login comes along"
    return (
        "In a jail: no login of yours is brought along; "
        f"the keys that are passed on when you export them: paddock providers {plan.provider}"
    )


def without_terminals(value: object) -> tuple[object, bool]:
    """A message of the agent's without what would let it choose a command that the client runs outside of the jail.

    A login "in a terminal" is one: arguments, environment and (`terminal-auth`) even the command come from the agent.
    They stand in `authMethods`, of the reply to `initialize` and of errors that ask for a login.

    Returns:
        The message, and whether it is another one than `value`.
    """
    if isinstance(value, list):
        items = [without_terminals(item) for item in value]
        changed = any(other for _, other in items)
        return ([item for item, _ in items], True) if changed else (value, False)
    if not isinstance(value, dict):
        return value, False
    changed = False
    result: dict[str, object] = {}
    for name, item in value.items():
        found, other = _logins(item) if name == "authMethods" else without_terminals(item)
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
        if isinstance(meta, dict):
            own = {name: item for name, item in meta.items() if name != TERMINAL_LOGIN}
            if own.get("type") == "terminal":
                own = {name: item for name, item in own.items() if name not in _COMMAND}
            changed = changed or own != meta
            method = {**method, "_meta": own} if own != meta else method
        kept.append(method)
    return kept, changed
