"""Direct reply-to: answers without a queue."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Deliver
from broker_client.errors import ReplyError
from tests.support.builders import EngineHarness, a_message

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def server(harness: EngineHarness) -> int:
    """Another connection's channel, which answers what comes to queue ``q``."""
    harness.queue()
    return harness.engine.open_channel(harness.engine.open_connection("/"))


def ask(harness: EngineHarness, server: int, **properties: Any) -> str:
    """Send a request; returns the address that the server is given."""
    harness.publish(a_message(reply_to=REPLY_TO, **properties))
    got = harness.engine.consuming.get(server, "q", harness.now, no_ack=True)
    assert got is not None
    address = got[0].properties.reply_to
    assert address is not None
    return address


def test_an_answer_goes_straight_to_who_asked(harness: EngineHarness, server: int) -> None:
    tag = harness.consume(REPLY_TO, no_ack=True)
    address = ask(harness, server, correlation_id="c1")
    assert address.startswith(f"{REPLY_TO}.")
    harness.take()
    harness.publish(a_message(address, b"answer", correlation_id="c1"), channel=server)
    (effect,) = harness.take()
    assert isinstance(effect, Deliver)
    assert effect.channel == harness.channel
    delivery = effect.delivery
    assert (delivery.consumer_tag, delivery.body, delivery.routing_key) == (tag, b"answer", address)
    assert (delivery.delivery_tag, delivery.exchange, delivery.redelivered) == (1, "", False)
    assert delivery.properties.correlation_id == "c1"


def test_every_channel_has_an_address_of_its_own(harness: EngineHarness, server: int) -> None:
    harness.consume(REPLY_TO, no_ack=True)
    other = harness.another_channel()
    harness.consume(REPLY_TO, channel=other, no_ack=True)
    first = ask(harness, server)
    harness.publish(a_message(reply_to=REPLY_TO), channel=other)
    got = harness.engine.consuming.get(server, "q", harness.now, no_ack=True)
    assert got is not None
    assert got[0].properties.reply_to != first


def test_asking_without_consuming_replies_is_refused(harness: EngineHarness) -> None:
    harness.queue()
    with pytest.raises(ReplyError, match="fast reply consumer does not exist"):
        harness.publish(a_message(reply_to=REPLY_TO))
    assert harness.stats().message_count == 0


def test_replies_cannot_be_acknowledged_nor_consumed_twice(harness: EngineHarness) -> None:
    with pytest.raises(ReplyError, match="reply consumer cannot acknowledge"):
        harness.consume(REPLY_TO)
    tag = harness.consume(REPLY_TO, no_ack=True)
    with pytest.raises(ReplyError, match="reply consumer already set"):
        harness.consume(REPLY_TO, no_ack=True)
    harness.queue()
    with pytest.raises(ReplyError, match="attempt to reuse consumer tag"):
        harness.consume(consumer_tag=tag)


@pytest.mark.parametrize("how", ["cancel", "close channel", "close connection"])
def test_an_answer_to_who_is_gone_is_dropped(harness: EngineHarness, server: int, how: str) -> None:
    tag = harness.consume(REPLY_TO, no_ack=True)
    address = ask(harness, server)
    if how == "cancel":
        harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    elif how == "close channel":
        harness.engine.close_channel(harness.channel, harness.now)
    else:
        harness.engine.close_connection(harness.connection, harness.now)
    harness.take()
    harness.publish(a_message(address), channel=server)
    assert harness.take() == []
    harness.publish(a_message(address, mandatory=True), channel=server)
    assert harness.take() == []
    harness.publish(a_message(f"{REPLY_TO}.nobody", mandatory=True), channel=server)
    (returned,) = harness.returns()
    assert returned.returned.reply_code == 312


def test_a_mandatory_answer_arrives(harness: EngineHarness, server: int) -> None:
    harness.consume(REPLY_TO, no_ack=True)
    address = ask(harness, server)
    harness.take()
    harness.publish(a_message(address, mandatory=True), channel=server)
    assert [type(effect).__name__ for effect in harness.take()] == ["Deliver"]


@pytest.mark.parametrize("mandatory", [True, False])
def test_a_mandatory_answer_arrives_and_comes_back_up_to_4_2(mandatory: bool) -> None:
    harness = EngineHarness(compatibility=(4, 2))
    server = harness.engine.open_channel(harness.engine.open_connection("/"))
    harness.queue()
    harness.consume(REPLY_TO, no_ack=True)
    address = ask(harness, server)
    harness.take()
    harness.publish(a_message(address, mandatory=mandatory), channel=server)
    expected = ["Deliver", "Return"] if mandatory else ["Deliver"]
    assert [type(effect).__name__ for effect in harness.take()] == expected
    harness.publish(a_message(f"{REPLY_TO}.nobody", mandatory=mandatory), channel=server)
    assert len(harness.returns()) == mandatory


def test_the_address_can_be_checked(harness: EngineHarness, server: int) -> None:
    harness.consume(REPLY_TO, no_ack=True)
    address = ask(harness, server)
    assert harness.engine.topology.check_queue(server, REPLY_TO, harness.now) == (REPLY_TO, 0, 1)
    assert harness.engine.topology.check_queue(server, address, harness.now) == (address, 0, 1)
    harness.engine.close_channel(harness.channel, harness.now)
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        harness.engine.topology.check_queue(server, address, harness.now)
