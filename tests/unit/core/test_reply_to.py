"""Direct reply-to: answers without a queue."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Deliver
from broker_client.errors import ReplyError
from tests.support.builders import Desk, a_message

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def server(desk: Desk) -> int:
    """Another connection's channel, which answers what comes to queue ``q``."""
    desk.queue()
    return desk.engine.open_channel(desk.engine.open_connection("/"))


def ask(desk: Desk, server: int, **properties: Any) -> str:
    """Send a request; returns the address that the server is given."""
    desk.publish(a_message(reply_to=REPLY_TO, **properties))
    got = desk.engine.get(server, "q", desk.now, no_ack=True)
    assert got is not None
    address = got[0].properties.reply_to
    assert address is not None
    return address


def test_an_answer_goes_straight_to_who_asked(desk: Desk, server: int) -> None:
    tag = desk.consume(REPLY_TO, no_ack=True)
    address = ask(desk, server, correlation_id="c1")
    assert address.startswith(f"{REPLY_TO}.")
    desk.take()
    desk.publish(a_message(address, b"answer", correlation_id="c1"), channel=server)
    (effect,) = desk.take()
    assert isinstance(effect, Deliver)
    assert effect.channel == desk.channel
    delivery = effect.delivery
    assert (delivery.consumer_tag, delivery.body, delivery.routing_key) == (tag, b"answer", address)
    assert (delivery.delivery_tag, delivery.exchange, delivery.redelivered) == (1, "", False)
    assert delivery.properties.correlation_id == "c1"


def test_every_channel_has_an_address_of_its_own(desk: Desk, server: int) -> None:
    desk.consume(REPLY_TO, no_ack=True)
    other = desk.another_channel()
    desk.consume(REPLY_TO, channel=other, no_ack=True)
    first = ask(desk, server)
    desk.publish(a_message(reply_to=REPLY_TO), channel=other)
    got = desk.engine.get(server, "q", desk.now, no_ack=True)
    assert got is not None
    assert got[0].properties.reply_to != first


def test_asking_without_consuming_replies_is_refused(desk: Desk) -> None:
    desk.queue()
    with pytest.raises(ReplyError, match="fast reply consumer does not exist"):
        desk.publish(a_message(reply_to=REPLY_TO))
    assert desk.stats().message_count == 0


def test_replies_cannot_be_acknowledged_nor_consumed_twice(desk: Desk) -> None:
    with pytest.raises(ReplyError, match="reply consumer cannot acknowledge"):
        desk.consume(REPLY_TO)
    tag = desk.consume(REPLY_TO, no_ack=True)
    with pytest.raises(ReplyError, match="reply consumer already set"):
        desk.consume(REPLY_TO, no_ack=True)
    desk.queue()
    with pytest.raises(ReplyError, match="attempt to reuse consumer tag"):
        desk.consume(consumer_tag=tag)


@pytest.mark.parametrize("how", ["cancel", "close channel", "close connection"])
def test_an_answer_to_who_is_gone_is_dropped_or_returned_if_mandatory(
    desk: Desk, server: int, how: str
) -> None:
    tag = desk.consume(REPLY_TO, no_ack=True)
    address = ask(desk, server)
    if how == "cancel":
        desk.engine.cancel(desk.channel, tag, desk.now)
    elif how == "close channel":
        desk.engine.close_channel(desk.channel, desk.now)
    else:
        desk.engine.close_connection(desk.connection, desk.now)
    desk.take()
    desk.publish(a_message(address), channel=server)
    assert desk.take() == []
    desk.publish(a_message(address, mandatory=True), channel=server)
    (returned,) = desk.returns()
    assert returned.returned.reply_code == 312


def test_a_mandatory_answer_is_returned_although_it_arrives(desk: Desk, server: int) -> None:
    """RabbitMQ: the address is no queue."""
    desk.consume(REPLY_TO, no_ack=True)
    address = ask(desk, server)
    desk.take()
    desk.publish(a_message(address, mandatory=True), channel=server)
    assert [type(effect).__name__ for effect in desk.take()] == ["Deliver", "Return"]


def test_the_address_can_be_checked(desk: Desk, server: int) -> None:
    desk.consume(REPLY_TO, no_ack=True)
    address = ask(desk, server)
    assert desk.engine.check_queue(server, REPLY_TO, desk.now) == (REPLY_TO, 0, 1)
    assert desk.engine.check_queue(server, address, desk.now) == (address, 0, 1)
    desk.engine.close_channel(desk.channel, desk.now)
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        desk.engine.check_queue(server, address, desk.now)
