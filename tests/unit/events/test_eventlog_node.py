"""What the built-in broker notes about messages, and that a node writes it down."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker_client import Broker
from broker_client.core.engine import Engine
from broker_client.core.observer import Observer
from broker_client.events.delivery_event import DeliveryEvent, Lines
from broker_client.message import Outgoing, Properties

Told = tuple[str, str | None, str | None, int | None]


def read_back(line: str) -> DeliveryEvent:
    fields = json.loads(line)
    for time in ("ts", "published_at", "enqueued_at", "delivered_at"):
        if time in fields:
            fields[time] /= 1e6
    return DeliveryEvent(**{name: fields.get(name) for name in DeliveryEvent._fields})


class Core:
    """An engine with an observer, one confirming publisher, one consumer, and time by hand."""

    def __init__(self) -> None:
        self.observer = Observer()
        self.lines = Lines("n1", "boot")
        self.engine = Engine(observer=self.observer)
        self.connection = self.engine.open_connection("/")
        self.out = self.engine.open_channel(self.connection, confirm=True)
        self.into = self.engine.open_channel(self.connection)
        self.now = 100.0
        self.taken: list[DeliveryEvent] = []

    def queue(self, name: str, **arguments: Any) -> None:
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.engine.topology.declare_queue(self.out, name, now=self.now, arguments=given)

    def consume(self, queue: str, *, no_ack: bool = False) -> None:
        self.engine.consuming.consume(self.into, queue, self.now, consumer_tag="c", no_ack=no_ack)

    def publish(self, queue: str, message_id: str = "m", **more: Any) -> None:
        properties = Properties(message_id=message_id, **more.pop("properties", {}))
        message = Outgoing("", queue, b"body", properties, **more)
        self.engine.publishing.publish(self.out, message, self.now)

    def told(self) -> list[Told]:
        """(event, queue, reason, attempt) of what happened since the last call."""
        lines = self.lines.message_lines(self.observer.take(), self.now)
        self.taken = [read_back(line) for line in lines]
        return [(each.event, each.queue, each.reason, each.attempt) for each in self.taken]


@pytest.fixture
def core() -> Core:
    made = Core()
    made.queue("q")
    return made


PUBLISHED: Told = ("published", None, None, None)
ENQUEUED: Told = ("enqueued", "q", None, None)
DELIVERED: Told = ("delivered", "q", None, 1)


def test_a_message_that_succeeds_is_published_enqueued_delivered_acked(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.now = 103.0
    core.engine.consuming.ack(core.into, 1, core.now)
    assert core.told() == [PUBLISHED, ENQUEUED, DELIVERED, ("acked", "q", None, 1)]
    acked = core.taken[-1]
    assert (acked.published_at, acked.enqueued_at, acked.delivered_at, acked.ts) == (
        100.0,
        100.0,
        100.0,
        103.0,
    )
    assert (acked.message_id, acked.routing_key, acked.consumer, acked.size) == ("m", "q", "c", 4)
    assert acked.redelivered is False


def test_without_acknowledgements_the_delivery_is_the_end(core: Core) -> None:
    core.consume("q", no_ack=True)
    core.publish("q")
    assert core.told() == [PUBLISHED, ENQUEUED, DELIVERED, ("acked", "q", None, 1)]


def test_a_message_that_waits_says_since_when(core: Core) -> None:
    core.publish("q")
    core.now = 130.0
    core.consume("q")
    assert core.told() == [PUBLISHED, ENQUEUED, DELIVERED]
    delivered = core.taken[-1]
    assert (delivered.enqueued_at, delivered.delivered_at) == (100.0, 130.0)


def test_a_confirm_is_noted_when_the_node_sends_it(core: Core) -> None:
    core.publish("q", "m1")
    core.publish("q", "m2")
    core.told()
    core.observer.confirmed(core.out, 1, 2, True, 101.0)
    assert core.told() == [("confirmed", None, None, None)] * 2
    assert [each.message_id for each in core.taken] == ["m1", "m2"]
    assert core.taken[0].published_at == 100.0
    core.observer.confirmed(core.out, 1, 2, True, 102.0)
    assert core.told() == []


def test_a_channel_that_closes_leaves_no_unconfirmed_publishes_behind(core: Core) -> None:
    core.publish("q")
    core.engine.close_channel(core.out, core.now)
    core.told()
    core.observer.confirmed(core.out, 1, 1, True, 101.0)
    assert core.told() == []


def test_a_refused_publish_failed(core: Core) -> None:
    core.queue("small", x_max_length=0, x_overflow="reject-publish")
    core.publish("small")
    core.told()
    core.observer.confirmed(core.out, 1, 1, False, 101.0)
    assert core.told() == [("publish_failed", None, "maxlen", None)]


@pytest.mark.parametrize(("mandatory", "event"), [(True, "returned"), (False, "dropped")])
def test_an_unroutable_message_is_returned_or_dropped(
    core: Core, mandatory: bool, event: str
) -> None:
    core.publish("nowhere", mandatory=mandatory)
    assert core.told() == [PUBLISHED, (event, None, "unroutable", None)]


def test_a_refused_delivery_is_nacked_and_then_dropped(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.told()
    core.engine.consuming.nack(core.into, 1, core.now, requeue=False)
    assert core.told() == [("nacked", "q", "rejected", 1), ("dropped", "q", "rejected", 1)]


def test_a_dead_letter_is_enqueued_again_and_keeps_the_time_it_was_published(core: Core) -> None:
    core.queue("work", x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    core.consume("work")
    core.publish("work")
    core.told()
    core.now = 200.0
    core.engine.consuming.nack(core.into, 1, core.now, requeue=False)
    assert core.told() == [
        ("nacked", "work", "rejected", 1),
        ("dead_lettered", "work", "rejected", 1),
        ("enqueued", "q", None, None),
    ]
    assert (core.taken[-1].published_at, core.taken[-1].enqueued_at) == (100.0, 200.0)
    core.publish("q", "next")
    core.told()
    assert core.taken[-1].published_at == 200.0


def test_a_dead_letter_that_no_queue_takes_is_dropped(core: Core) -> None:
    core.queue("work", x_dead_letter_exchange="", x_dead_letter_routing_key="nowhere")
    core.consume("work")
    core.publish("work")
    core.told()
    core.engine.consuming.nack(core.into, 1, core.now, requeue=False)
    assert core.told()[-2:] == [
        ("dead_lettered", "work", "rejected", 1),
        ("dropped", None, "unroutable", None),
    ]


def test_a_requeue_is_delivered_again_with_the_next_attempt(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.told()
    core.engine.consuming.nack(core.into, 1, core.now)
    assert core.told() == [
        ("nacked", "q", "rejected", 1),
        ("requeued", "q", "rejected", 1),
        ("delivered", "q", None, 2),
    ]
    assert core.taken[-1].redelivered is True


def test_a_deferred_requeue_comes_back_later(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.told()
    core.engine.consuming.nack(core.into, 1, core.now, delay=5.0)
    assert core.told() == [("nacked", "q", "rejected", 1), ("requeued", "q", "rejected", 1)]
    core.now = 106.0
    core.engine.tick(core.now)
    assert core.told() == [("delivered", "q", None, 2)]


def test_a_consumer_that_goes_gives_back_for_that_reason(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.told()
    core.engine.close_channel(core.into, core.now)
    assert core.told() == [("requeued", "q", "connection_lost", 1)]


def test_a_recover_gives_back_for_that_reason(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.told()
    core.engine.consuming.recover(core.into, core.now)
    assert core.told()[0] == ("requeued", "q", "recovered", 1)


def test_a_delivery_that_takes_too_long_timed_out(core: Core) -> None:
    core.consume("q")
    core.publish("q")
    core.told()
    core.now = 161.0
    core.engine.tick(core.now)
    assert core.told() == [("timed_out", "q", "timeout", 1), ("delivered", "q", None, 2)]


def test_a_message_that_expires_without_a_dead_letter_exchange_expired(core: Core) -> None:
    core.publish("q", properties={"expiration": "1000"})
    core.told()
    core.now = 102.0
    core.engine.tick(core.now)
    assert core.told() == [("expired", "q", "expired", None)]


def test_the_oldest_of_a_full_queue_is_dropped(core: Core) -> None:
    core.queue("small", x_max_length=1)
    core.publish("small", "m1")
    core.publish("small", "m2")
    assert core.told()[-1] == ("dropped", "small", "maxlen", None)
    assert core.taken[-1].message_id == "m1"


def test_purge_of_which_the_core_is_not_told_the_time_has_that_of_the_taking(
    core: Core,
) -> None:
    core.publish("q")
    core.now = 103.0
    core.engine.topology.purge_queue(core.out, "q")
    assert core.told() == [PUBLISHED, ENQUEUED, ("dropped", "q", "purged", None)]
    assert [each.ts for each in core.taken] == [100.0, 100.0, 103.0]
    core.publish("q")
    assert core.told() == [PUBLISHED, ENQUEUED]


def test_the_same_message_published_again_later_has_its_own_time(core: Core) -> None:
    message = Outgoing("", "q", b"body", Properties(message_id="m"))
    for now in (100.0, 103.0):
        core.engine.publishing.publish(core.out, message, now)
    core.now = 105.0
    core.consume("q")
    core.told()
    assert [(each.event, each.published_at) for each in core.taken] == [
        ("published", 100.0),
        ("enqueued", 100.0),
        ("published", 103.0),
        ("enqueued", 103.0),
        ("delivered", 100.0),
        ("delivered", 103.0),
    ]


def test_a_priority_a_trace_and_text_that_json_escapes_are_told_of_each_event(core: Core) -> None:
    core.queue('say "hi"')
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    core.consume('say "hi"')
    core.publish('say "hi"', "Grüße\n", properties={"priority": 3, "headers": trace})
    core.observer.confirmed(core.out, 1, 1, True, core.now)
    core.engine.consuming.ack(core.into, 1, core.now)
    core.told()
    assert {(each.message_id, each.routing_key, each.priority) for each in core.taken} == {
        ("Grüße\n", 'say "hi"', 3)
    }
    assert {each.trace_id for each in core.taken} == {"0af7651916cd43dd8448eb211c80319c"}
    assert [each.queue for each in core.taken if each.event != "published"] == [
        'say "hi"',
        'say "hi"',
        None,
        'say "hi"',
    ]


def test_every_stay_in_a_queue_ends_once(core: Core) -> None:
    core.queue("work", x_dead_letter_exchange="", x_dead_letter_routing_key="q", x_max_length=3)
    core.consume("work")
    core.engine.consuming.qos(core.into, 2)
    for number in range(10):
        core.publish("work", f"m{number}")
    for tag in (1, 2, 3):
        core.engine.consuming.nack(core.into, tag, core.now, requeue=tag == 2)
    core.engine.close_channel(core.into, core.now)
    core.engine.topology.purge_queue(core.out, "work")
    core.engine.topology.purge_queue(core.out, "q")
    core.told()
    entered = Counter(
        (each.queue, each.message_id) for each in core.taken if each.event == "enqueued"
    )
    ends = ("acked", "dead_lettered", "expired", "dropped")
    left = Counter((each.queue, each.message_id) for each in core.taken if each.event in ends)
    assert entered == left
    assert len(entered) > 10


# --------------------------------------------------------------------------- the node


def closed_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.jsonl"))


async def test_a_broker_writes_the_log_its_configuration_asks_for(tmp_path: Path) -> None:
    config = {
        "vhosts": {"/": {"queues": ["q"]}},
        "node": {"event_log": {"path": str(tmp_path)}},
    }
    async with Broker.create(config) as broker:
        await (await broker.publish("/q", b"hello", message_id="m1"))
        assert not closed_files(tmp_path)
    (file,) = closed_files(tmp_path)
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in written] == ["published", "enqueued", "confirmed"]
    assert {line["message_id"] for line in written} == {"m1"}
    assert {line["vhost"] for line in written} == {"/"}


async def test_a_shared_node_writes_to_a_folder_of_its_name(tmp_path: Path) -> None:
    config = {
        "vhosts": {"/": {"connection": "embedded://orders", "queues": ["q"]}},
        "node": {"event_log": {"path": str(tmp_path)}},
    }
    async with Broker.create(config) as broker:
        await (await broker.publish("/q", b"hello"))
    (file,) = closed_files(tmp_path)
    assert file.parent.name == "node=orders"
