"""The validator's answer and its JSON forms."""

import json

import pytest
from pydantic import ValidationError

from policy.sandbox import Reason, SandboxValidationResult, WorktreeSandbox
from policy.violation import FALLBACK_JSON

BOX = WorktreeSandbox()


@pytest.mark.spec("FR-014", "CONTRACT-ERROR")
def test_the_error_json_has_the_specified_keys_in_order() -> None:
    """contracts.md, Error Response Format, word for word."""
    denied = BOX.validate("/other/path/file.txt", "/usr")
    assert json.loads(denied.to_error_json(), object_pairs_hook=list) == [
        ("error", True),
        ("errorType", "SANDBOX_VIOLATION"),
        ("attemptedPath", "/other/path/file.txt"),
        ("sandboxRoot", "/usr"),
        ("operation", "READ"),
        ("message", "Access denied: path is outside worktree sandbox"),
    ]
    detail = json.loads(denied.to_detail_json(), object_pairs_hook=list)
    assert detail[6:] == [("reason", "outside"), ("normalizedPath", "/other/path/file.txt")]


@pytest.mark.spec("FR-014", "CONTRACT-ERROR")
def test_the_fallback_json_stands_for_what_cannot_be_written() -> None:
    """The specification gives it literally."""
    broken = SandboxValidationResult.model_construct(allowed=False, attempted_path=object(), reason=Reason.OUTSIDE)
    assert broken.to_error_json() == '{"error":true,"message":"Sandbox violation"}' == FALLBACK_JSON


def test_a_denial_needs_a_reason_and_a_permission_has_none() -> None:
    """The data model's rule, both ways; results are frozen and closed."""
    with pytest.raises(ValidationError, match="reason is required"):
        SandboxValidationResult(allowed=False)
    with pytest.raises(ValidationError, match="must be absent"):
        SandboxValidationResult(allowed=True, reason=Reason.OUTSIDE)
    with pytest.raises(ValidationError, match="Extra inputs"):
        SandboxValidationResult.model_validate({"allowed": True, "x": 1})
    with pytest.raises(ValidationError):
        SandboxValidationResult.model_validate({"allowed": False, "reason": "because"})
    allowed = SandboxValidationResult.allow()
    with pytest.raises(ValidationError, match="frozen"):
        allowed.allowed = False
    with pytest.raises(ValueError, match="no error response"):
        allowed.to_error_json()


def test_results_survive_json() -> None:
    """Tools in other processes read them back."""
    for target in ("file", "/etc"):
        result = BOX.validate(target, "/usr")
        assert SandboxValidationResult.model_validate_json(result.model_dump_json()) == result


def test_messages_cannot_drive_a_terminal() -> None:
    """Control characters of a path are visible in the sentence, and long paths are cut."""
    message = BOX.validate("missing/../\x1b[31m\n" + "x" * 3000, "/usr").message
    assert message is not None
    assert message.isprintable()
    assert "\\x1b" in message
    assert len(message) < 2500


@pytest.mark.spec("SC-005")
def test_every_reason_has_a_sentence_that_names_path_and_boundary() -> None:
    """SC-005; the plain case is worded by the contract, and carries both in the JSON beside it."""
    for reason in Reason:
        message = SandboxValidationResult.deny("/att", "/root-dir", "READ", reason=reason, detail="why").message
        assert message is not None
        assert message.startswith("Access denied: ")
        if reason not in (Reason.OUTSIDE, Reason.EMPTY):
            assert "/att" in message
        if reason is not Reason.OUTSIDE:
            assert "/root-dir" in message
