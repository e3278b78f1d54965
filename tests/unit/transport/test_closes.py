import pytest

from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    ConnectionLostError,
    OperationTimeoutError,
)
from broker_client.transport.closes import Meaning, meaning_of


def by_connection(code: int) -> ChannelClosedError:
    return ChannelClosedError(0, f"connection to amqp://h lost: {code}", connection_code=code)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        # channel.close (AMQP 0-9-1 §1.2)
        (ChannelClosedError(311, "CONTENT_TOO_LARGE"), Meaning.REFUSED),
        (ChannelClosedError(313, "NO_CONSUMERS"), Meaning.REFUSED),
        (ChannelClosedError(403, "ACCESS_REFUSED - write access refused"), Meaning.REFUSED),
        (ChannelClosedError(404, "NOT_FOUND - no exchange 'x' in vhost '/'"), Meaning.MISSING),
        (ChannelClosedError(405, "RESOURCE_LOCKED"), Meaning.BUSY),
        (ChannelClosedError(406, "PRECONDITION_FAILED - invalid expiration"), Meaning.REFUSED),
        (ChannelClosedError(406, "PRECONDITION_FAILED - message size 9"), Meaning.REFUSED),
        (ChannelClosedError(540, "NOT_IMPLEMENTED"), Meaning.REFUSED),
        (ChannelClosedError(541, "INTERNAL_ERROR"), Meaning.REFUSED),
        # the state of the broker, for any code
        (ChannelClosedError(406, "PRECONDITION_FAILED - low on disk space"), Meaning.BUSY),
        (ChannelClosedError(406, "PRECONDITION_FAILED - low on memory"), Meaning.BUSY),
        (ChannelClosedError(506, "RESOURCE_ERROR - disk alarm"), Meaning.BUSY),
        # connection.close
        (by_connection(320), Meaning.LOST),
        (by_connection(501), Meaning.REFUSED),
        (by_connection(502), Meaning.REFUSED),
        (by_connection(503), Meaning.REFUSED),
        (by_connection(504), Meaning.LOST),
        (by_connection(505), Meaning.REFUSED),
        (by_connection(506), Meaning.LOST),
        (by_connection(530), Meaning.LOST),
        (by_connection(540), Meaning.REFUSED),
        (by_connection(541), Meaning.REFUSED),
        # no close at all
        (ChannelClosedError(0, "the link is gone"), Meaning.LOST),
        (ConnectionLostError("amqp://h", "reset"), Meaning.LOST),
        (OperationTimeoutError("channel 1", 10.0), Meaning.LOST),
    ],
    ids=str,
)
def test_meaning_of_each_close(error: BrokerClientError, meaning: Meaning) -> None:
    assert meaning_of(error) is meaning
