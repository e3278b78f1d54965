"""No foreign exception leaves the transport: each is mapped to one of our errors."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import aio_pika.exceptions
import aiormq.exceptions
import pamqp.exceptions
import pytest

from broker_client.errors import (
    AuthenticationRefusedError,
    ChannelClosedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)
from broker_client.message import Outgoing, Properties
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Capabilities
from broker_client.transport.rabbitmq.channel import NetworkChannel
from broker_client.transport.rabbitmq.errors import FOREIGN_ERRORS, translate, unreachable
from tests.support.warp import WarpLoop

loop_factory = WarpLoop

OURS_TO_RAISE: frozenset[str] = frozenset({"CancelledError"})
"""Not errors of these modules: asyncio's own, which they import."""


def exceptions_of(module: ModuleType) -> Iterator[type[BaseException]]:
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, BaseException)
            and value.__name__ not in OURS_TO_RAISE
        ):
            yield value


FOREIGN = sorted(
    {
        kind
        for module in (aiormq.exceptions, aio_pika.exceptions, pamqp.exceptions)
        for kind in exceptions_of(module)
    },
    key=lambda kind: (kind.__module__, kind.__name__),
)


def an_instance(kind: type[BaseException]) -> BaseException:
    for arguments in ((), ("reason",), ("reason", 1), (None, None), ("a", "b", "c")):
        try:
            return kind(*arguments)
        except TypeError:
            continue
        except AttributeError:  # it looks into a returned message
            error = kind.__new__(kind)
            error.args = ("reason",)
            return error
    raise AssertionError(f"do not know how to make a {kind}")


def test_there_are_foreign_exceptions_to_look_at() -> None:
    assert len(FOREIGN) > 40


@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_foreign_exception_is_caught_and_has_an_error_of_ours(kind: type[BaseException]) -> None:
    assert issubclass(kind, FOREIGN_ERRORS), "it would leave the transport as it is"
    error = translate("amqp://h/", an_instance(kind))
    assert isinstance(error, TransportError)
    assert str(error)


@pytest.mark.parametrize(
    ("foreign", "ours", "code"),
    [
        (aiormq.exceptions.ChannelAccessRefused("no"), ChannelClosedError, 403),
        (aiormq.exceptions.ChannelNotFoundEntity("no"), ChannelClosedError, 404),
        (aiormq.exceptions.ChannelLockedResource("no"), ChannelClosedError, 405),
        (aiormq.exceptions.ChannelPreconditionFailed("no"), ChannelClosedError, 406),
        (aiormq.exceptions.ChannelInvalidStateError("no"), ChannelClosedError, 0),
        (aiormq.exceptions.ProbableAuthenticationError("no"), AuthenticationRefusedError, None),
        (aiormq.exceptions.ConnectionNotAllowed("no"), AuthenticationRefusedError, None),
        (aiormq.exceptions.ConnectionClosed(320, "forced"), ConnectionLostError, None),
        (ConnectionResetError("reset"), ConnectionLostError, None),
        (OSError(errno.ETIMEDOUT, "timed out"), OperationTimeoutError, None),
    ],
)
def test_meaning_of_a_foreign_exception(
    foreign: BaseException, ours: type[TransportError], code: int | None
) -> None:
    error = translate("amqp://h/", foreign)
    assert type(error) is ours
    assert getattr(error, "reply_code", None) == code


# --------------------------------------------------------------------------- a channel


class FakeOwner:
    """A link whose socket fails as the test says."""

    url = "amqp://h/"
    frame_max = 0
    capabilities = Capabilities()
    operation_timeout = 5.0
    takes_more = False

    def __init__(self) -> None:
        self.tasks = TaskGroup("test")
        self.failure: BaseException | None = None
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drain(self) -> None:
        if self.failure is not None:
            raise self.failure

    def lost_reason(self) -> TransportError | None:
        return None

    def forget(self, channel: NetworkChannel) -> None:
        pass


class FakeRaw:
    """A fake of aiormq's channel."""

    number = 1

    def __init__(self) -> None:
        self.consumers: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self.hangs = False

    async def rpc(self, frame: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        pass


def a_channel() -> tuple[FakeOwner, FakeRaw, NetworkChannel]:
    owner, raw = FakeOwner(), FakeRaw()
    return owner, raw, NetworkChannel(owner, raw, confirm=True)  # type: ignore[arg-type] # a fake


MESSAGE = Outgoing("", "q", b"x", Properties())


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ETIMEDOUT, "Connection timed out"),  # a TimeoutError, and not ours
        ConnectionResetError("reset"),
        RuntimeError("closed"),
        asyncio.CancelledError(),
    ],
    ids=["timed out", "reset", "closed", "cancelled by aiormq"],
)
async def test_socket_that_fails_under_a_write_or_a_question_is_an_error_of_ours(
    failure: BaseException,
) -> None:
    owner, raw, channel = a_channel()
    owner.failure = raw.failure = failure
    with pytest.raises(TransportError):
        await channel.publish([MESSAGE])
    with pytest.raises(TransportError):
        await channel.declare_queue("q")
    await owner.tasks.wait()


async def test_question_without_an_answer_ends_in_time_and_takes_the_channel_with_it() -> None:
    owner, raw, channel = a_channel()
    raw.hangs = True
    with pytest.raises(OperationTimeoutError, match="no answer within 5 s"):
        await channel.declare_queue("q")
    assert not channel.is_usable
    await owner.tasks.wait()


async def test_cancellation_from_outside_stays_one() -> None:
    owner, raw, channel = a_channel()
    raw.hangs = True
    asking = asyncio.create_task(channel.declare_queue("q"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await owner.tasks.wait()


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"),
            "nothing listens there",
        ),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed"), "nothing listens there"),
        (socket.gaierror(-2, "Name or service not known"), "no such host"),
        (TimeoutError(), None),
    ],
)
def test_host_that_cannot_be_reached_is_reported_in_words(cause: OSError, told: str | None) -> None:
    wrapped = aiormq.exceptions.AMQPConnectionError(*cause.args)
    wrapped.__cause__ = cause
    for error in (cause, wrapped):
        assert (unreachable(error) or "").startswith(told or "") is True
        assert (unreachable(error) is None) == (told is None)
