"""Refusals of the management API, and what the errors of others become there."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    ChannelClosedError,
    ReplyError,
    StoreError,
    TransportError,
    UnknownNameError,
    UsageError,
)

_FAILED = "failed"
REALM = "broker_client management"


class Refusal(Exception):  # noqa: N818 - never leaves this folder
    """Ends a request with an error status."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        """
        Args:
            status: HTTP's.
            error: RabbitMQ's word for the kind of error.
            reason: for people.
        """
        super().__init__(status, error, reason)
        self.status: int = status
        self.error: str = error
        self.reason: str = reason


def not_found() -> Refusal:
    """404: no such object, or no such path."""
    return Refusal(404, "Object Not Found", "Not Found")


def bad_request(reason: str) -> Refusal:
    return Refusal(400, "bad_request", reason)


def not_authorized(reason: str) -> Refusal:
    """401: nobody, or somebody who may not do this. RabbitMQ: not 403."""
    return Refusal(401, "not_authorized", reason)


def failed(reason: str) -> Refusal:
    """503: a health check that found something."""
    return Refusal(503, _FAILED, reason)


def refusal_of(error: BrokerClientError) -> Refusal:
    """The refusal for an error of the node."""
    match error:
        case ReplyError(reply_code=403):
            return not_authorized(error.reply_text)
        case ReplyError(reply_code=404):
            return not_found()
        case ReplyError():
            return bad_request(f"{error.reply_code} {error.reply_text}")
        case UnknownNameError():
            return bad_request(str(error))
        case ChannelClosedError(reply_code=403):
            return not_authorized(error.reply_text)
        case ChannelClosedError(reply_code=404):
            return not_found()
        case StoreError() | BrokerClosedError() | TransportError():
            return Refusal(503, "unavailable", str(error))
        case UsageError():
            return bad_request(str(error))
    return Refusal(500, "internal_error", type(error).__name__)


def response_of(refusal: Refusal) -> Response:
    """RabbitMQ's JSON of an error."""
    headers = {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = f'Basic realm="{REALM}"'
    key = "status" if refusal.error == _FAILED else "error"
    body = {key: refusal.error, "reason": refusal.reason}
    return JSONResponse(body, refusal.status, headers)
