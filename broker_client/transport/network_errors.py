"""Foreign errors, and what they mean in ours: they stop here."""

from __future__ import annotations

import asyncio

import aiormq.exceptions
import pamqp.exceptions

from broker_client.errors import (
    AuthenticationRefusedError,
    ChannelClosedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)

FOREIGN_ERRORS = (
    aiormq.exceptions.AMQPError,
    pamqp.exceptions.PAMQPException,
    aiormq.exceptions.ChannelInvalidStateError,
    OSError,  # ConnectionError and every failure of a socket or of TLS
    EOFError,
    StopAsyncIteration,
    RuntimeError,  # aiormq: an operation on a connection that is closed
)
"""What aiormq and the socket raise; nothing of it leaves `transport/`."""


def translate(url: str, error: BaseException) -> TransportError:
    """The error of ours that says what `error`, a foreign one, means."""
    reason = " ".join(str(part) for part in error.args if part) or type(error).__name__
    match error:
        case aiormq.exceptions.ChannelClosed():
            code = {
                aiormq.exceptions.ChannelAccessRefused: 403,
                aiormq.exceptions.ChannelNotFoundEntity: 404,
                aiormq.exceptions.ChannelLockedResource: 405,
                aiormq.exceptions.ChannelPreconditionFailed: 406,
            }.get(type(error), 0)
            return ChannelClosedError(code, reason)
        case aiormq.exceptions.AMQPChannelError() | aiormq.exceptions.ChannelInvalidStateError():
            return ChannelClosedError(0, reason)
        case (
            aiormq.exceptions.ProbableAuthenticationError()
            | aiormq.exceptions.AuthenticationError()
            | aiormq.exceptions.ConnectionNotAllowed()
        ):
            return AuthenticationRefusedError(url, reason)
        case TimeoutError():
            return OperationTimeoutError(f"broker at {url}", 0.0)
    return ConnectionLostError(url, reason)


def is_bare(error: Exception) -> bool:
    """True for what aiormq ends waiting calls with when its connection ends for no reason."""
    return type(error) is Exception


def cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
