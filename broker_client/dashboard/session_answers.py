"""Login, logout, and the session as sent to the page."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker_client.dashboard.api import LoginRefusedError
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.dashboard import Dashboard
from broker_client.dashboard.refusals import Refusal, bad_request
from broker_client.dashboard.requests import (
    address_of,
    check_csrf,
    cookie_of,
    json_of,
    refuse_other_sites,
    set_cookie,
    text,
)

_MAX_LOGIN_BYTES = 10_000


def session_routes(dashboard: Dashboard) -> list[Route]:
    """Paths that need no session."""

    async def session(request: Request) -> Response:
        return await _refusable(_session(dashboard, request))

    async def login(request: Request) -> Response:
        return await _refusable(_login(dashboard, request))

    async def logout(request: Request) -> Response:
        return await _refusable(_logout(dashboard, request))

    return [
        Route("/ui/session", session),
        Route("/ui/login", login, methods=["POST"]),
        Route("/ui/logout", logout, methods=["POST"]),
    ]


async def _refusable(answering: Any) -> Response:
    try:
        response: Response = await answering
    except Refusal as refusal:
        response = refusal.response()
    return response


async def _session(dashboard: Dashboard, request: Request) -> Response:
    key = cookie_of(request)
    session = dashboard.sessions.find(key)
    if session is not None:
        try:
            return JSONResponse(await dashboard.describe(session))
        except LoginRefusedError:
            refusal = await dashboard.refused(key, session)
            if refusal.status != 401:
                raise refusal from None
    return JSONResponse({"authenticated": False})


async def _login(dashboard: Dashboard, request: Request) -> Response:
    refuse_other_sites(request)
    credentials = await _credentials(request)
    dashboard.sessions.end(cookie_of(request), "logged_out")
    key, session = await dashboard.log_in(credentials, address_of(request))
    response = JSONResponse(await dashboard.describe(session))
    set_cookie(request, response, key)
    return response


async def _credentials(request: Request) -> Credentials:
    """What was typed. The password is in no frame that is alive after this."""
    data = await json_of(request, _MAX_LOGIN_BYTES)
    credentials = Credentials(text(data, "user"), text(data, "password"))
    if ":" in credentials.user:
        raise bad_request("the name of a user who logs in over HTTP has no colon")
    return credentials


async def _logout(dashboard: Dashboard, request: Request) -> Response:
    refuse_other_sites(request)
    key = cookie_of(request)
    session = dashboard.sessions.find(key)
    if session is not None:
        check_csrf(request, session.csrf)
        dashboard.sessions.end(key, "logged_out")
        dashboard.audit.record(session.user, address_of(request), "log out", "", 204)
    response = Response(status_code=204)
    set_cookie(request, response, "")
    return response
