"""The ASGI application of the dashboard."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker_client.dashboard import (
    api_answers,
    dead_letter_answers,
    job_answers,
    live_answers,
    queue_answers,
    topology_answers,
)
from broker_client.dashboard.api import LoginRefusedError
from broker_client.dashboard.asks import Answering, Ask
from broker_client.dashboard.dashboard import Dashboard
from broker_client.dashboard.refusals import INTERNAL_ERROR, Refusal, no_session, not_found
from broker_client.dashboard.requests import SAFE, check_csrf, cookie_of, refuse_other_sites
from broker_client.dashboard.session_answers import session_routes
from broker_client.runtime.pace import as_json

log: logging.Logger = logging.getLogger("broker_client.dashboard")

ANSWERS = (
    *api_answers.answers,
    *live_answers.answers,
    *queue_answers.answers,
    *job_answers.answers,
    *dead_letter_answers.answers,
    *topology_answers.answers,
)
"""All that needs a session."""

# Starlette's streams need it, and would load it while the first of them holds the event loop.
importlib.import_module("anyio._backends._asyncio")

_STATIC = Path(__file__).parent / "static"
_BASE_PATH = "broker_client.base_path"
_AUTOMATIC = "x-automatic"  # the page refreshes itself, which does not count as use of the session
_API_PATHS = ("/api", "/metrics", "/health")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; "
        "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NO_STORE = {"Cache-Control": "no-store"}
_COMPRESSED = Middleware(GZipMiddleware, minimum_size=500)
"""Of what is sent once and then kept. Figures are not: that would hold the broker's event loop, and
a stream would wait for more."""
_MAY_KEEP = {"Cache-Control": "no-cache"}  # a browser asks whether what it has is still so


def make_application(dashboard: Dashboard) -> ASGIApp:
    """The pages, and what they ask for."""
    routes = [
        *session_routes(dashboard),
        *(_route(dashboard, each) for each in ANSWERS),
        Mount("/static", StaticFiles(directory=_STATIC), middleware=[_COMPRESSED]),
        Route("/", _index),
    ]
    application = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return _AsSent(application, dashboard.base_path)


def beside_api(dashboard: ASGIApp, api: ASGIApp) -> ASGIApp:
    """`api` on its own paths, the dashboard on all others."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_api = any(path == each or path.startswith(f"{each}/") for each in _API_PATHS)
        await (api if is_api else dashboard)(scope, receive, send)

    return application


async def _index(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html", media_type="text/html; charset=utf-8")


def _route(dashboard: Dashboard, answering: Answering) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await _answer(dashboard, answering, request)
        except Refusal as refusal:
            return refusal.response()
        except Exception:
            # What fails for one request must not fail for others, nor in silence.
            log.exception("%s %s: failed", request.method, answering.path)
            return Refusal(500, "internal_error", INTERNAL_ERROR).response()

    return Route(answering.path, endpoint, methods=list(answering.methods))


async def _answer(dashboard: Dashboard, answering: Answering, request: Request) -> Response:
    key = cookie_of(request)
    if request.method not in SAFE:
        refuse_other_sites(request)
    use = answering.counts_as_use and _AUTOMATIC not in request.headers
    session = dashboard.sessions.find(key, use=use)
    if session is None:
        raise no_session()
    if request.method not in SAFE:
        check_csrf(request, session.csrf)
    ask = Ask(dashboard, session, key, request)
    try:
        result: Any = await answering.handler(ask)
    except LoginRefusedError:
        raise await dashboard.refused(key, session) from None
    if isinstance(result, Response):
        return result
    return Response(await as_json(result), media_type="application/json")


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return not_found().response()
    word = error.detail.lower().replace(" ", "_")
    response = Refusal(error.status_code, word, error.detail).response()
    response.headers.update(error.headers or {})
    return response


class _AsSent:
    """Routes by the path as it was sent, so that an encoded slash stays within a name, and sets
    the headers that keep browsers strict."""

    def __init__(self, application: ASGIApp, base_path: str) -> None:
        self._application = application
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        sending = _with_headers(send, path)
        if self._base_path:
            if path == self._base_path:
                await RedirectResponse(f"{path}/", 308)(scope, receive, sending)
                return
            # A proxy may cut the base path off, or not.
            if path.startswith(f"{self._base_path}/"):
                path = path[len(self._base_path) :]
        scope = {**scope, "path": path, _BASE_PATH: self._base_path}
        await self._application(scope, receive, sending)


def _with_headers(send: Send, path: str) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            cache = _NO_STORE if "/ui/" in path else _MAY_KEEP
            added = {**_HEADERS, **cache}.items()
            sent = [(name.lower().encode(), value.encode()) for name, value in added]
            message["headers"] = [*message.get("headers", ()), *sent]
        await send(message)

    return send_with_headers
