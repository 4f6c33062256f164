"""What an agent is told of its client: only what holds with a jail in between.

Source: the protocol's `initialize` (https://agentclientprotocol.com/protocol/initialization).
"""

from typing import Any

from launcher.bridges.acp.logins import TERMINAL_LOGIN


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
