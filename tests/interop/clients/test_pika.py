"""pika, unchanged, on the built-in broker's port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pika
import pika.exceptions
import pytest


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.fixture
def queue() -> str:
    return f"pika-{uuid4().hex[:8]}"


def test_what_the_server_can_do_is_seen(connection: Any) -> None:
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported


def test_messages_are_confirmed_consumed_and_acked(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        delivery_mode=2, headers={"n": 1, "t": {"a": [1, None, True]}}, priority=0
    )
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number, properties, mandatory=True)
    bodies = []
    for method, got, body in channel.consume(queue, inactivity_timeout=60):
        assert got.headers == properties.headers
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == 50:
            break
    assert bodies == [b"%d" % number for number in range(50)]
    assert channel.cancel() == 0
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_unroutable_is_returned_before_it_is_confirmed(channel: Any) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", "nowhere", b"x", mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert returned.body == b"x"


def test_a_full_queue_nacks(channel: Any, queue: str) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(queue, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue, b"2")


@pytest.mark.parametrize(
    ("code", "do"),
    [
        (404, lambda c: c.queue_declare("missing", passive=True)),
        (404, lambda c: c.exchange_declare("missing", passive=True)),
        (403, lambda c: c.queue_declare("amq.mine")),
        (403, lambda c: c.exchange_delete("amq.topic")),
        (404, lambda c: c.basic_consume("missing", lambda *_: None)),
        (404, lambda c: c.queue_purge("missing")),
    ],
)
def test_a_refusal_closes_the_channel_and_not_the_connection(
    connection: Any, channel: Any, code: int, do: Any
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        do(channel)
    assert caught.value.reply_code == code
    assert connection.channel().is_open


def test_an_unknown_delivery_tag_closes_the_channel(connection: Any, channel: Any) -> None:
    reasons: list[Any] = []
    channel._impl.add_on_close_callback(lambda _, reason: reasons.append(reason))  # noqa: SLF001 - the blocking channel has no such callback
    channel.basic_ack(99)
    connection.process_data_events(5)
    [reason] = reasons
    assert (reason.reply_code, connection.channel().is_open) == (406, True)
    assert "unknown delivery tag 99" in reason.reply_text


def test_bad_credentials_and_vhosts_are_told_apart(url: str) -> None:
    bad = pika.URLParameters(url.replace("guest:guest", "guest:wrong"))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(bad)
    missing = pika.URLParameters(url)
    missing.virtual_host = "missing"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost missing not found"):
        pika.BlockingConnection(missing)


def test_transactions_hold_back_until_commit(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, exclusive=True)
    channel.tx_select()
    channel.basic_publish("", queue, b"forgotten")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"kept")
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    channel.tx_commit()
    method, _, body = channel.basic_get(queue)
    assert (body, method.message_count) == (b"kept", 0)


def test_recover_and_nack_give_back(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish("", queue, b"1")
    channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    method, _, _ = channel.basic_get(queue)
    assert method.redelivered
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"1", True)
    assert channel.basic_get(queue) == (None, None, None)


def test_a_deleted_queue_cancels_its_consumer(connection: Any, channel: Any, queue: str) -> None:
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.queue_declare(queue)
    tag = channel.basic_consume(queue, lambda *_: None)
    connection.channel().queue_delete(queue)
    connection.process_data_events(5)
    assert [frame.method.consumer_tag for frame in cancelled] == [tag]


def test_direct_reply_to_answers_on_the_same_channel(
    connection: Any, channel: Any, queue: str
) -> None:
    answers = []
    channel.queue_declare(queue, exclusive=True)
    channel.basic_consume(
        "amq.rabbitmq.reply-to", lambda *got: answers.append(got[3]), auto_ack=True
    )
    request = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    channel.basic_publish("", queue, b"ask", request)
    other = connection.channel()
    _, properties, _ = other.basic_get(queue, auto_ack=True)
    other.basic_publish("", properties.reply_to, b"answer")
    connection.process_data_events(5)
    assert answers == [b"answer"]


def test_a_body_of_many_frames_and_an_empty_one_come_through(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, exclusive=True)
    for body in (bytes(range(256)) * 4096, b""):
        channel.basic_publish("", queue, body)
        assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_the_last_queue_is_meant_by_an_empty_name(connection: Any, channel: Any) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    channel.queue_bind("", "amq.fanout")
    channel.basic_publish("amq.fanout", "", b"x")
    assert channel.basic_get(name, auto_ack=True)[2] == b"x"


def test_flow_and_qos_are_answered(channel: Any) -> None:
    channel.basic_qos(prefetch_count=7)
    channel.basic_qos(prefetch_count=7, global_qos=False)
    assert channel.flow(True)


def test_the_secret_of_a_connection_is_updated(connection: Any) -> None:
    connection.update_secret("new", "rotated")
    assert connection.channel().is_open
