"""What clients are told over HTTP: one JSON object in the shape of every other error of Paddock's, made for agents."""

import json

from launcher.egress.gateway import Denied

REALM = b'Basic realm="paddock"'


def denied(refusal: Denied) -> bytes:
    """403, with the rule that would allow it, also in the reason phrase, which tools like pip show."""
    verdict = refusal.verdict
    hint = ""
    if verdict.suggestion:
        word = "" if verdict.suggestion.startswith("without ") else "with "
        hint = f"ask the user to start Paddock {word}{verdict.suggestion}"
    return answer(
        403, "Blocked by Paddock", "egress-denied", verdict.reason, hint, (("X-Paddock-Allow", verdict.suggestion),)
    )


def answer(
    status: int, phrase: str, reference: str, message: str, hint: str = "", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A complete response, after which the connection closes.

    Args:
        status: of HTTP.
        phrase: begins the reason phrase; `message` follows.
        reference: stable identifier.
        message: one sentence.
        hint: what to do next.
        headers: further ones; those with an empty value are left out.
    """
    body = json.dumps(
        {"error": True, "errorType": reference, "message": message, "context": "paddock's network proxy", "hint": hint}
    ).encode()
    lines = [f"HTTP/1.1 {status} {_plain(f'{phrase}: {message}')}"]
    lines += [f"{name}: {_plain(value)}" for name, value in headers if value]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body) + 1}", "Connection: close",
              "Proxy-Connection: close", "Cache-Control: no-store"]  # fmt: skip
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body + b"\n"


def unauthorized() -> bytes:
    """407: the token of the session is missing or wrong."""
    return answer(
        407,
        "Proxy Authentication Required",
        "egress-token",
        "the session's token is missing",
        "use the URL in HTTP_PROXY as it is, with its user name and password",
        (("Proxy-Authenticate", REALM.decode()),),
    )


def _plain(text: str) -> str:
    """One line, whatever a client has sent."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:300]
