"""Converts the errors of aiormq, aio-pika and sockets to ours."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable

import aiormq.exceptions
import pamqp.exceptions

from broker_client.errors import (
    AuthenticationRefusedError,
    ChannelClosedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)

log: logging.Logger = logging.getLogger("broker_client.transport")

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


_REFUSED = f"[Errno {errno.ECONNREFUSED}]"


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


def unreachable(error: BaseException) -> str | None:
    """What to do if `error` says that the broker could not be reached at all."""
    cause = error if error.__cause__ is None else error.__cause__
    if isinstance(cause, socket.gaierror):
        return f"no such host ({cause.strerror})"
    # asyncio: a host with several addresses fails with the texts of all in one OSError.
    if isinstance(cause, ConnectionRefusedError) or _REFUSED in str(cause):
        return "nothing listens there: is the broker running, and is this its port?"
    return None


def cut_short(error: BaseException) -> str | None:
    """In words, if `error` says that the broker ended the connection amid the handshake."""
    cause = error if error.__cause__ is None else error.__cause__
    if isinstance(cause, EOFError):
        return "the broker closed the connection during the handshake; its log may say why"
    if isinstance(cause, ConnectionError):
        return "the connection was cut off during the handshake; the broker's log may say why"
    return None


def is_bare(error: Exception) -> bool:
    """True for what aiormq ends waiting calls with when its connection ends for no reason."""
    return type(error) is Exception


class Cancellation:
    """Distinguishes a cancellation of the running task from aiormq's, which stand for its errors.

    aiormq cancels what waits on a connection that closes, answers a cancellation with an error
    when its own clean-up fails, and may return as if there had been none. Make one before each
    call, and ask in each `except` and behind it.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0

    @property
    def came(self) -> bool:
        """True if the task was cancelled since."""
        return self._task is not None and self._task.cancelling() > self._before

    def reraise(self) -> None:
        """Raise CancelledError if the task was cancelled since."""
        if self.came:
            raise asyncio.CancelledError


async def close_quietly(
    closing: Awaitable[object], subject: object, timeout: float, cancellation: Cancellation
) -> None:
    """Wait for aiormq to close something; what it raises meanwhile is logged.

    Args:
        closing: its close.
        subject: what is closed, for the log.
        timeout: seconds; on a socket that is dead no answer comes.
        cancellation: made before; the only thing that is raised. aiormq may keep one to itself,
            so ask it again when all is done.
    """
    try:
        async with asyncio.timeout(timeout):
            await closing
    except asyncio.CancelledError:
        cancellation.reraise()
    except (TimeoutError, *FOREIGN_ERRORS) as error:
        cancellation.reraise()
        log.debug("%r: close: %r", subject, error)
    except Exception as error:
        if not is_bare(error):
            raise
