"""The application: routes, bounds, and one shape for everything that goes wrong."""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from launcher.service.api import repositories, service, sessions
from launcher.service.api.context import Context
from launcher.service.api.status import status_of
from launcher.service.models import Error
from policy.errors import Refusal

log = logging.getLogger("paddock.service")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ANY = {
    400: {"model": Error, "description": "This is no request that can be read."},
    413: {"model": Error, "description": "The request is too large."},
    422: {"model": Error, "description": "The request cannot be carried out."},
    503: {"model": Error, "description": "The service cannot do it now."},
}


def build(context: Context, version: str) -> FastAPI:
    """The ASGI application.

    Args:
        context: what the routes work with.
        version: of Paddock.
    """
    app = FastAPI(
        title="Paddock control API",
        version=version,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses=_ANY,  # type: ignore[arg-type]  # the type is wider than its annotation
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.context = context
    for module in (sessions, repositories, service):
        app.include_router(module.router)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)
    return app


class Bounded:
    """An ASGI application whose requests have bodies of a bounded size.

    Args:
        app: the application.
        most: bytes, asked at each request.
    """

    def __init__(self, app: FastAPI, most: Callable[[], int]) -> None:
        """See the class."""
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, once its whole body is there and small enough."""
        most, seen = self._most(), 0
        for name, value in scope.get("headers", ()):
            if name == b"content-length" and (not value.isdigit() or int(value) > most):
                await self._refuse(send, most)
                return
        messages: list[MutableMapping[str, Any]] = []
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
            seen += len(messages[-1].get("body", b""))
            if seen > most:
                await self._refuse(send, most)
                return

        async def replayed() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replayed, send)

    async def _refuse(self, send: Send, most: int) -> None:
        refusal = Refusal("request-large", "the request is too large", context=f"its body may have {most} bytes")
        _count(self._app, refusal)
        await _answer(send, refusal)


def _count(app: FastAPI, refusal: Refusal) -> None:
    context: Context = app.state.context
    context.supervisor.counters.refused(refusal.as_dict())


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps(refusal.as_dict()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
               (b"connection", b"close")]  # fmt: skip
    await send({"type": "http.response.start", "status": status_of(refusal), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _response(request: Request, refusal: Refusal) -> JSONResponse:
    _count(request.app, refusal)
    return JSONResponse(refusal.as_dict(), status_of(refusal))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    return _response(request, error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """A request of another form than the OpenAPI document has. What was sent is not sent back: it may be secret."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
    refusal = Refusal("request-malformed", "the request is not of the form that the API has",
                      context="\n".join(problems[:20]), hint="GET /v1/openapi.json describes it")  # fmt: skip
    return _response(request, refusal)


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses by itself: unknown routes and methods, bodies that it cannot read."""
    assert isinstance(error, HTTPException)
    hint = "GET /v1/openapi.json lists what there is"
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return _response(request, Refusal("route-unknown", f"there is no {what}", hint=hint))
    if error.status_code == 405:
        response = _response(request, Refusal("method-unknown", f"there is no {what}", hint=hint))
        response.headers.update(error.headers or {})
        return response
    return _response(request, Refusal("request-invalid", "the request cannot be read", context=str(error.detail)))


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    refusal = Refusal("internal-error", "the service could not go on with this request", context=repr(error),
                      hint="this is a fault of Paddock; its log has more")  # fmt: skip
    return _response(request, refusal)
