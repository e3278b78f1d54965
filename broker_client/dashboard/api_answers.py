"""The management API, passed through for the user of the session."""

from __future__ import annotations

from starlette.responses import Response

from broker_client.dashboard.api import refusal_of
from broker_client.dashboard.asks import Answers, Ask
from broker_client.dashboard.audit import described
from broker_client.dashboard.refusals import Refusal, unreachable
from broker_client.dashboard.requests import MAX_MESSAGE_BYTES, SAFE, body_of, check_json_type

answers: Answers = Answers()

_REASON = "x-reason"


@answers.on("GET PUT POST DELETE", "/ui/api/{path:path}")
async def pass_through(ask: Ask) -> Response:
    """Ask the API as the user, and answer as it does."""
    request, path = ask.request, ask.request.path_params["path"]
    changes = request.method not in SAFE
    if changes:
        check_json_type(request)
    try:
        response = await _passed(ask, path)
    except Refusal as refusal:
        if changes:
            ask.record(*described(request.method, path), refusal.status)
        raise
    if changes:
        ask.record(*described(request.method, path), response.status_code)
    return response


async def _passed(ask: Ask, path: str) -> Response:
    request = ask.request
    reason = request.headers.get(_REASON)
    answer = await ask.dashboard.api.request(
        request.method,
        path,
        ask.session.account,
        query=request.scope["query_string"].decode("ascii", "replace"),
        content=await body_of(request, MAX_MESSAGE_BYTES),
        headers={} if reason is None else {_REASON: reason},
    )
    if answer.status == 401:
        raise await ask.dashboard.refused(ask.key, ask.session)
    if answer.status >= 400:
        raise refusal_of(answer)
    if answer.body and not answer.is_json:
        raise unreachable("what answers there is not a management API")
    # Whatever it says of itself: a body that a browser might take for a page never gets there.
    media = "application/json" if answer.body else None
    return Response(answer.body, answer.status, media_type=media)
