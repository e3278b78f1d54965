"""The consumer behind a reading query, on RabbitMQ and without Spark."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_client.amqp.table_decoding import ForeignTime
from broker_client.amqp.tables import FrozenTable
from broker_client.errors import BrokerClientError
from broker_client.message import Outgoing, Properties
from broker_client.spark.endpoints import connect_any, connectors
from broker_client.spark.errors import SourceError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.options import SourceOptions, parse
from broker_client.spark.reading.queue_receiver import QueueReceiver
from broker_client.spark.reading.rows import to_stream_batch
from broker_client.spark.reading.segment_store import SegmentStore
from broker_client.spark.reading.spool import Spool, read_segment
from broker_client.spark.reading.stream_offsets import StreamEnd, read_range
from tests.spark.queues import Queues, numbered, until
from tests.support.proxy import Proxy

Reading = Callable[..., "Reader"]
QUORUM = {"x-queue-type": "quorum"}
STREAM = {"x-queue-type": "stream"}


class Reader:
    """A receiver with a spool of its own."""

    def __init__(self, url: str, queue: str, folder: Path, limit: int | None, **more: str) -> None:
        given = {"url": url, "queue": queue, "spool": str(folder), "segmentAge": "50ms", **more}
        options = parse(SourceOptions, given)
        self.spool = Spool(folder, max_bytes=options.spool_max_bytes)
        self.spool.open()
        self.receiver = QueueReceiver(
            SegmentStore(self.spool, queue, options), connectors(options), limit=limit
        )

    def rows(self) -> list[dict[str, Any]]:
        batches = [batch for each in self.spool.after(0) for batch in read_segment(each.path)]
        return [row for batch in batches for row in batch.to_pylist()]

    def ids(self) -> list[str]:
        return [row["message_id"] for row in self.rows()]

    def failure(self) -> BrokerClientError | None:
        try:
            self.receiver.check()
        except BrokerClientError as error:
            return error
        return None

    def stop(self) -> None:
        self.receiver.stop()
        self.spool.close()


@pytest.fixture
def reading(queues: Queues, tmp_path: Path) -> Iterator[Reading]:
    made: list[Reader] = []

    def make(queue: str, *, limit: int | None = None, **options: str) -> Reader:
        folder = tmp_path / f"spool{len(made)}"
        made.append(Reader(queues.url, queue, folder, limit, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


# --------------------------------------------------------------------------- one consumer


def test_second_receiver_of_a_quorum_queue_is_refused_and_the_first_goes_on(
    queues: Queues, reading: Reading
) -> None:
    queues.declare("in", arguments=QUORUM)
    first, second = reading("in"), reading("in", lockTimeout="300ms")
    first.receiver.start()
    with pytest.raises(SourceError, match="another consumer"):
        second.receiver.start()
    queues.publish("in", numbered(20))
    until(lambda: len(first.ids()) == 20, "all messages in the first spool")
    assert first.ids() == numbered(20)
    assert not any(row["redelivered"] for row in first.rows())
    assert second.ids() == []


def test_receiver_of_a_quorum_queue_takes_over_when_the_last_one_goes(
    queues: Queues, reading: Reading
) -> None:
    queues.declare("in", arguments=QUORUM)
    first, second = reading("in"), reading("in", lockTimeout="30s", limit=10)
    first.receiver.start()
    queues.publish("in", numbered(10))
    until(lambda: len(first.ids()) == 10, "all messages in the first spool")
    first.receiver.stop()
    second.receiver.start()
    assert second.failure() is None


def test_consumer_that_joins_a_quorum_queue_later_fails_the_receiver(
    queues: Queues, reading: Reading
) -> None:
    queues.declare("in", arguments=QUORUM)
    first = reading("in", lockTimeout="300ms")
    first.receiver.start()
    other = reading("in", exclusive="false")
    other.receiver.start()
    sent = 0

    def failed() -> bool:
        nonlocal sent
        queues.publish("in", [f"m{sent}"])
        sent += 1
        return first.failure() is not None

    until(failed, "the receiver to notice")
    assert "another consumer" in str(first.failure())
    until(lambda: len({*first.ids(), *other.ids()}) == sent, "every message somewhere")


# --------------------------------------------------------------------------- the end


def test_stop_while_the_link_is_lost_does_not_connect_again(queues: Queues, tmp_path: Path) -> None:
    queues.declare("in")
    thread = LoopThread("test proxy")
    proxy = thread.call(Proxy("127.0.0.1", queues.server.port).__aenter__())
    url = queues.url.replace(f":{queues.server.port}/", f":{proxy.port}/")
    reader = Reader(url, "in", tmp_path / "spool", None)
    try:
        reader.receiver.start()
        thread.loop.call_soon_threadsafe(proxy.stall)

        def lose() -> None:
            proxy.cut()
            proxy.resume()

        # While unacked messages are requeued, which waits for the broker's answer.
        thread.loop.call_soon_threadsafe(thread.loop.call_later, 0.2, lose)
        reader.stop()
        until(lambda: not proxy.connections, "the proxy to see the end")
        assert proxy.accepted == 1
        assert reader.receiver.is_finished
    finally:
        reader.stop()
        thread.call(proxy.__aexit__(None, None, None))
        thread.stop()


# --------------------------------------------------------------------------- hostile messages


def nested(levels: int) -> bytes:
    """A table in tables."""
    inner = b""
    for _ in range(levels - 1):
        inner = b"\x01kF" + struct.pack(">I", len(inner)) + inner
    return inner


def table(entries: bytes) -> FrozenTable:
    return FrozenTable(struct.pack(">I", len(entries)) + entries)


def foreign_time(number: int) -> ForeignTime:
    time = ForeignTime.of(0)
    time.number = number
    return time


TEXT = b"\x01aS" + struct.pack(">I", 1) + b"a"
DEEP = b"\x01dF" + struct.pack(">I", len(nested(900))) + nested(900)
HOSTILE = {
    "deep headers": Properties(headers=table(TEXT + DEEP)),
    "15,000 headers": Properties(
        headers=table(b"".join(b"\x05%05dV" % number for number in range(15_000)))
    ),
    "half a surrogate pair": Properties(
        headers=table(b"\x01hS" + struct.pack(">I", 3) + b"\xed\xa0\x80")
    ),
    "delivery count beyond 32 bits": Properties(headers={"x-delivery-count": 2**62}),
    "offset of its own": Properties(headers={"x-stream-offset": "none"}),
    "decimal of many digits": Properties(
        headers=table(b"\x01DD" + b"\xff" + struct.pack(">i", -(2**31)))
    ),
    "unsigned 64 bits as time": Properties(headers=table(b"\x01TT" + b"\xff" * 8)),
    "time beyond 64 bits": Properties(timestamp=foreign_time(2**63 - 1)),
    "time in the last year": Properties(timestamp=foreign_time(253402300799)),
    "time before year 1": Properties(timestamp=foreign_time(-(2**62))),
    "negative milliseconds": Properties(timestamp=foreign_time(-62135596800000)),
    "priority": Properties(priority=255),
    "expiration": Properties(expiration="4294967295"),
    "foreign content type": Properties(content_type="\x00\x01", content_encoding="?"),
}
NO_STREAM = "decimal of many digits"


def hostile(queue: str) -> list[Outgoing]:
    """One message of each kind, with valid ones around them."""
    sound = [
        Outgoing("", queue, b"body", Properties(message_id=name)) for name in ("first", "last")
    ]
    odd = [
        Outgoing("", queue, b"body", properties._replace(message_id=name))
        for name, properties in HOSTILE.items()
    ]
    return [sound[0], *odd, sound[1]]


def check_rows(rows: list[dict[str, Any]]) -> None:
    assert [row["message_id"] for row in rows] == ["first", *HOSTILE, "last"]
    assert {row["body"] for row in rows} == {b"body"}
    by_id = {row["message_id"]: row for row in rows}
    assert by_id["first"]["fault"] is None
    assert by_id["last"]["fault"] is None
    assert "nested more than 64 levels" in by_id["deep headers"]["fault"]
    assert dict(by_id["deep headers"]["headers"])["a"] == "a"
    assert len(by_id["15,000 headers"]["headers"]) >= 15_000
    assert by_id["delivery count beyond 32 bits"]["attempt"] == 1
    assert by_id["time in the last year"]["timestamp"] is None
    assert "9998" in by_id["time in the last year"]["fault"]


def test_hostile_messages_arrive_with_their_faults_and_the_rest_goes_on(
    queues: Queues, reading: Reading
) -> None:
    queues.declare("in")
    queues.publish_all(hostile("in"))
    reader = reading("in", limit=1000)
    reader.receiver.start()
    until(lambda: reader.receiver.is_finished, "the receiver to end")
    assert reader.failure() is None
    check_rows(reader.rows())
    assert queues.depth("in") == 0


def test_hostile_messages_of_a_stream_arrive_with_their_faults(queues: Queues) -> None:
    queues.declare("log", arguments=STREAM)
    # RabbitMQ stores a stream's messages in another format, without such decimals.
    messages = [each for each in hostile("log") if each.properties.message_id != NO_STREAM]
    queues.publish_all(messages)
    end = StreamEnd([queues.connector()], "log", timeout=60)
    try:
        until(lambda: end.find() == len(messages), "the end of the stream")
    finally:
        end.stop()
    chunks = read_range([queues.connector()], "log", 0, len(messages), timeout=60, gap_ok=False)
    rows = [row for chunk in chunks for row in to_stream_batch(chunk, "log").to_pylist()]
    assert [row["stream_offset"] for row in rows] == list(range(len(messages)))
    assert [row["message_id"] for row in rows] == [each.properties.message_id for each in messages]


def test_queue_read_as_a_stream_is_refused_and_keeps_its_messages(queues: Queues) -> None:
    queues.declare("in")
    queues.publish("in", numbered(3))
    end = StreamEnd([queues.connector()], "in", timeout=60)
    try:
        with pytest.raises(SourceError, match="x-stream-offset"):
            end.find()
    finally:
        end.stop()
    until(lambda: queues.depth("in") == 3, "the messages to go back")


# --------------------------------------------------------------------------- several addresses


def test_address_that_never_answers_leaves_time_for_the_next_one(
    queues: Queues,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        given = {
            "url": f"amqp://127.0.0.1:{port}/?connection_timeout=300,{queues.url}",
            "queue": "in",
            "spool": "unused",
        }
        brokers = connectors(parse(SourceOptions, given))
        brokers.sort(key=lambda each: str(port) not in each.url)

        async def connect() -> str:
            link = await connect_any(brokers, timeout=15.0)
            await link.close()
            return link.url

        thread = LoopThread("test connect")
        try:
            assert str(port) not in thread.call(connect(), 30)
        finally:
            thread.stop()
