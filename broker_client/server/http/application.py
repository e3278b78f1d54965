"""The ASGI application of the management API."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from broker_client.core.access import User
from broker_client.errors import BrokerClientError
from broker_client.runtime.pace import as_json
from broker_client.server.http import (
    definition_operations,
    message_operations,
    move_operations,
    overview_operations,
    parameter_operations,
    policy_operations,
    topology_operations,
    user_operations,
    vhost_operations,
)
from broker_client.server.http.callers import (
    MONITORING,
    Caller,
    authenticated,
    refuse_other_sites,
)
from broker_client.server.http.calls import Call, Operation
from broker_client.server.http.errors import (
    Refusal,
    not_authorized,
    not_found,
    refusal_of,
    response_of,
)
from broker_client.server.http.exposition import CONTENT_TYPE, render_families
from broker_client.server.http.listings import listed, shown
from broker_client.server.http.management import Management
from broker_client.server.http.openapi import openapi_document

log: logging.Logger = logging.getLogger("broker_client.server")

OPERATIONS: tuple[Operation, ...] = (
    *overview_operations.operations,
    *topology_operations.operations,
    *vhost_operations.operations,
    *message_operations.operations,
    *move_operations.operations,
    *user_operations.operations,
    *policy_operations.operations,
    *parameter_operations.operations,
    *definition_operations.operations,
)
"""All operations with a login."""

_CALLER = "broker_client.caller"
"""In the scope of a request: who asks. What calls the application in this process may say so; what
comes over a socket has no such key."""

_Endpoint = Callable[[Request], Awaitable[Response]]
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_application(management: Management) -> ASGIApp:
    """The application for one node."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    # More fixed parts first: /api/users/without-permissions is not a user.
    paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    routes = [
        *_open_routes(management),
        *(_route(management, path, by_path[path]) for path in paths),
    ]
    application = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return _AsSent(application)


def as_monitoring(application: ASGIApp, management: Management) -> ASGIApp:
    """The application of `make_application` for this process itself: it needs no login, sees
    what the tag monitoring sees and what is in all vhosts, and has no permissions."""
    user = User("", (MONITORING,))
    caller = Caller(user, management.node.access, is_this_process=True)

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await application({**scope, _CALLER: caller}, receive, send)

    return asked


def _route(management: Management, path: str, methods: dict[str, Operation]) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await _answer(management, request, methods[method])

    return Route(path, endpoint, methods=list(methods))


async def _answer(management: Management, request: Request, operation: Operation) -> Response:
    try:
        if operation.method != "GET":
            refuse_other_sites(request)
        caller = _logged_in(management, request)
        if not caller.has(operation.tag):
            raise not_authorized(f"Not {operation.tag} user")
        call = Call(management, caller, request)
        result = await operation.handler(call)
        if operation.method != "GET":
            await management.node.drain()  # a change is answered when it is kept
        if isinstance(result, Response):
            return result
        if type(result) is int:
            return Response(status_code=result)
        if operation.is_list:
            result = await listed(result, call.query)
        elif operation.method == "GET":
            result = shown(result, call.query)
        return Response(await as_json(result), media_type="application/json")
    except Refusal as refusal:
        return response_of(refusal)
    except BrokerClientError as error:
        return response_of(refusal_of(error))
    except Exception:
        # What fails for one request must not fail for others, nor in silence.
        log.exception("%s %s: failed", operation.method, operation.path)
        return response_of(Refusal(500, "internal_error", "see the log of the server"))


def _logged_in(management: Management, request: Request) -> Caller:
    """The user who asks; an address that fails too often is not listened to for a while."""
    known: Caller | None = request.scope.get(_CALLER)
    if known is not None:
        return known
    address = "" if request.client is None else request.client.host
    if management.admission.is_shut_out(address):
        raise Refusal(429, "too_many_requests", "Too many failed logins: wait a second")
    try:
        return authenticated(request, management.node.access)
    except Refusal:
        if "authorization" in request.headers:
            management.admission.login_failed(address)
        raise


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return response_of(not_found())
    reason = error.detail
    response = JSONResponse(
        {"error": reason.lower().replace(" ", "_"), "reason": reason}, error.status_code
    )
    response.headers.update(error.headers or {})
    return response


# --------------------------------------------------------------------------- without a login


def _open_routes(management: Management) -> list[Route]:
    """Probes, metrics without names, and the description of the API."""
    document = json.dumps(openapi_document(OPERATIONS, management.versions()["product_version"]))

    async def live(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        if management.node.accepts:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the node is closed or has failed\n", 503)

    async def metrics(_request: Request) -> Response:
        return Response(await render_families(management), media_type=CONTENT_TYPE)

    async def metrics_by_queue(request: Request) -> Response:
        try:
            if not _logged_in(management, request).has(MONITORING):
                raise not_authorized("Not monitoring user")
        except Refusal as refusal:
            return response_of(refusal)
        families = request.query_params.getlist("family")
        text = await render_families(management, by_queue=True, only=families)
        return Response(text, media_type=CONTENT_TYPE)

    async def openapi(_request: Request) -> Response:
        return Response(document, media_type="application/json")

    return [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/metrics", metrics),
        Route("/metrics/per-object", metrics_by_queue),
        Route("/metrics/detailed", metrics_by_queue),
        Route("/api/openapi.json", openapi),
    ]


class _AsSent:
    """Routes by the path as it was sent, so that an encoded slash stays within a name."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        if path in ("/api/vhosts//", "/api/vhosts/%2F/", "/api/vhosts/%2f/"):
            path = "/api/vhosts/%2F"  # rascal does not encode the name "/"

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._application({**scope, "path": path}, receive, send_with_headers)
