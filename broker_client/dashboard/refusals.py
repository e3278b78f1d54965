"""Refusals of the dashboard, as JSON."""

from __future__ import annotations

from starlette.responses import JSONResponse

INTERNAL_ERROR = "the dashboard failed: see the log of the server"


class Refusal(Exception):  # noqa: N818 - never leaves this folder
    """Ends a request with an error status."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        """
        Args:
            status: HTTP's.
            error: the kind of error, for programs.
            reason: for people.
        """
        super().__init__(status, error, reason)
        self.status: int = status
        self.error: str = error
        self.reason: str = reason

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.error, "reason": self.reason}, self.status)


def bad_request(reason: str) -> Refusal:
    return Refusal(400, "bad_request", reason)


def no_session() -> Refusal:
    """401: there is no login, or the session has ended."""
    return Refusal(401, "no_session", "log in first: there is no session, or it has ended")


def forbidden(reason: str) -> Refusal:
    """403: the request does not come from our own page."""
    return Refusal(403, "forbidden", reason)


def not_permitted(reason: str) -> Refusal:
    """403: the broker does not allow this to the user."""
    return Refusal(403, "not_permitted", reason)


def not_found() -> Refusal:
    """404: no such object, or no such path."""
    return Refusal(404, "not_found", "there is no such object")


def unreachable(reason: str) -> Refusal:
    """502: the management API does not answer, or answers what cannot be."""
    return Refusal(502, "unreachable", reason)
