"""The OpenAPI document: what clients are generated from, so its names stay, and everything in it is said and typed."""

from types import SimpleNamespace
from typing import Any, cast

from launcher.service.api import app
from launcher.service.api.context import Context

OPERATIONS = {
    "create_session", "list_sessions", "show_session", "show_session_context", "forget_session", "stop_session",
    "signal_session", "attach_session", "read_session_log", "read_session_denials",
    "create_ticket_run", "list_ticket_runs", "show_ticket_run", "stop_ticket_run", "resume_ticket_run",
    "ask_context_manager",
    "list_worktrees", "add_worktree", "remove_worktree", "list_merges", "create_merge",
    "read_health", "read_metrics", "read_events",
}  # fmt: skip
"""Only additions: the names of generated clients' functions."""


def document() -> dict[str, Any]:
    """What GET /v1/openapi.json answers."""
    return app.build(cast(Context, SimpleNamespace()), "1").openapi()


def test_operations_keep_their_names_and_say_what_they_do() -> None:
    """Each has a summary, a description, and typed answers; each parameter is described by its name or in words."""
    operations = [each for methods in document()["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names))
    assert set(names) >= OPERATIONS, sorted(OPERATIONS - set(names))
    for each in operations:
        assert each["summary"], each
        assert each["description"], each
        for code, answer in each["responses"].items():
            assert answer["description"], (each["operationId"], code)
            for kind, content in answer.get("content", {}).items():
                assert "$ref" in content["schema"] or kind != "application/json", (each["operationId"], code)


def test_everything_that_is_sent_is_described() -> None:
    """Each model in a sentence, and each of its attributes."""
    for name, schema in document()["components"]["schemas"].items():
        assert schema.get("description"), name
        assert "Attributes:" not in schema["description"], name
        for attribute, field in schema.get("properties", {}).items():
            assert field.get("description"), f"{name}.{attribute}"
