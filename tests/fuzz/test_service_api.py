"""The control API against requests made from its own OpenAPI document."""

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support import served
from tests.support.served import Served

EXAMPLES = int(os.environ.get("PADDOCK_EXAMPLES", "8"))


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """A service to be talked to."""
    with served.started(most_sessions=8, helpers=1, term_seconds=0.1, stdin_seconds=0.1) as running:
        yield running


def sent(service: Served, case: Any) -> served.Answer:  # noqa: ANN401  # schemathesis has no public type for it
    """The answer to one generated request."""
    path = case.path
    for name, value in (case.path_parameters or {}).items():
        path = path.replace("{" + name + "}", quote(str(value), safe="") or "-")
    query = {name: value for name, value in (case.query or {}).items() if name not in ("wait", "follow")}
    if path.endswith("/events"):
        query["follow"] = "false"  # else the answer has no end
    target = path + ("?" + urlencode(query, doseq=True, errors="replace") if query else "")
    headers = {
        name: str(value)
        for name, value in (case.headers or {}).items()
        if str(value).isprintable() and str(value).isascii() and name.lower() not in ("connection", "upgrade")
    }
    body = case.body if isinstance(case.body, dict | list | str | int | float | bool) else None
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name not in ("wait", "wait_for_client")}
    return service.call(case.method.upper(), target, body, headers)


def test_no_request_from_the_document_is_answered_with_500(service: Served) -> None:
    """And every refusal has the one shape."""
    import schemathesis  # a second, of each worker
    from schemathesis.core.result import Ok

    document = service.get("/v1/openapi.json").json
    operations = list(schemathesis.openapi.from_dict(document).get_all_operations())
    assert len(operations) >= 10
    for each in operations:
        assert isinstance(each, Ok), each
        operation = each.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:  # noqa: ANN401  # see `sent`
            answer = sent(service, case)
            assert answer.status != 500, (case.method, case.path, case.body, answer.raw)
            if answer.status >= 400:
                refusal = json.loads(answer.raw)
                assert refusal["error"] is True, answer.raw
                assert refusal["errorType"], answer.raw

        check()
    assert service.get("/v1/health").status == 200
