"""After any sequence of commands, no message is lost, doubled or stuck."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker_client.core.effects import CloseChannel, Deliver
from broker_client.core.exchange import Destination
from broker_client.core.policies import Policy
from broker_client.core.queue import ChannelState, Queue
from broker_client.errors import ReplyError, StaleDeliveryError
from tests.support.builders import EngineHarness, a_message, command_of

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"max_length": 3, "dead_letter_exchange": "", "dead_letter_routing_key": "dead"},
    "strict": {"max_length": 2, "overflow": "reject-publish"},
    "timed": {"message_ttl": 5000, "dead_letter_exchange": "amq.topic"},
    "ranked": {"max_priority": 3, "max_length_bytes": 40},
    "limited": {"delivery_limit": 2, "message_timeout": 3000},
    "closing": {"consumer_timeout": 4000, "queue_type": "quorum", "max_length": 5},
    "dead": {"dead_letter_exchange": "", "dead_letter_routing_key": "plain"},
}
NAMES = st.sampled_from(sorted(QUEUES))
CHANNELS = st.integers(0, 2)


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = EngineHarness()
        self.channels: list[int] = []

    @initialize(compatibility=st.sampled_from([(3, 10), (4, 3)]))
    def declare(self, compatibility: tuple[int, int]) -> None:
        self.harness = EngineHarness(
            message_timeout=10.0, max_message_timeout=25.0, compatibility=compatibility
        )
        self.channels = [self.harness.another_channel(confirm=True) for _ in range(3)]
        for name, arguments in QUEUES.items():
            self.harness.queue(name, **arguments)
        for name in ("plain", "timed"):
            self.harness.engine.topology.bind(
                self.harness.channel, Destination("queue", name), "amq.topic", "#", {}
            )

    def command(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Give a command; a refused one changes nothing."""
        engine = self.harness.engine
        before = engine.stats(), engine.state.effects[:]
        try:
            return command_of(engine, name)(*arguments, **options)
        except (ReplyError, StaleDeliveryError):
            assert (engine.stats(), engine.state.effects) == before
            return None

    @rule(
        at=CHANNELS,
        key=NAMES,
        exchange=st.sampled_from(["", "amq.topic", "missing"]),
        expiration=st.sampled_from([None, None, "0", "2000"]),
        priority=st.sampled_from([None, 0, 1, 4, 9]),
        size=st.integers(0, 25),
    )
    def publish(
        self,
        at: int,
        key: str,
        exchange: str,
        expiration: str | None,
        priority: int | None,
        size: int,
    ) -> None:
        message = a_message(
            key, b"x" * size, exchange=exchange, expiration=expiration, priority=priority
        )
        self.command("publish", self.channels[at], message, self.harness.now)

    @rule(at=CHANNELS, name=NAMES, prefetch=st.integers(0, 3), no_ack=st.booleans())
    def consume(self, at: int, name: str, prefetch: int, no_ack: bool) -> None:
        self.harness.engine.consuming.qos(self.channels[at], prefetch)
        self.command("consume", self.channels[at], name, self.harness.now, no_ack=no_ack)

    @rule(
        pattern=st.sampled_from(["", "^t", "e", "ed$"]),
        key=st.sampled_from(
            ["max-length", "max-length-bytes", "message-ttl", "delivery-limit", "consumer-timeout"]
        ),
        value=st.sampled_from([1, 3, 30, 3000]),
        is_operator=st.booleans(),
    )
    def set_policy(self, pattern: str, key: str, value: int, is_operator: bool) -> None:
        is_operator = is_operator and key != "consumer-timeout"
        policy = Policy("/", "p", pattern, {key: value}, is_operator=is_operator)
        self.command("set_policy", policy, self.harness.now)

    @rule(is_operator=st.booleans())
    def delete_policy(self, is_operator: bool) -> None:
        self.command("delete_policy", "/", "p", self.harness.now, is_operator=is_operator)

    @rule(at=CHANNELS, active=st.booleans())
    def flow(self, at: int, active: bool) -> None:
        self.command("flow", self.channels[at], active, self.harness.now)

    @rule(at=CHANNELS, data=st.data())
    def cancel(self, at: int, data: st.DataObject) -> None:
        tags = list(self.harness.engine.state.channels[self.channels[at]].consumers)
        if tags:
            tag = data.draw(st.sampled_from(tags))
            self.harness.engine.consuming.cancel(self.channels[at], tag, self.harness.now)

    @rule(at=CHANNELS, name=NAMES, no_ack=st.booleans())
    def get(self, at: int, name: str, no_ack: bool) -> None:
        self.command("get", self.channels[at], name, self.harness.now, no_ack=no_ack)

    @rule(at=CHANNELS, tag=st.integers(0, 12), multiple=st.booleans())
    def ack(self, at: int, tag: int, multiple: bool) -> None:
        self.command("ack", self.channels[at], tag, self.harness.now, multiple=multiple)

    @rule(
        at=CHANNELS,
        tag=st.integers(0, 12),
        multiple=st.booleans(),
        requeue=st.booleans(),
        delay=st.sampled_from([None, 0.0, 3.0]),
    )
    def nack(self, at: int, tag: int, multiple: bool, requeue: bool, delay: float | None) -> None:
        self.command(
            "nack",
            self.channels[at],
            tag,
            self.harness.now,
            multiple=multiple,
            requeue=requeue,
            delay=delay,
        )

    @rule(at=CHANNELS, tag=st.integers(0, 12))
    def touch(self, at: int, tag: int) -> None:
        result = self.command("touch", self.channels[at], tag, self.harness.now)
        assert not result or 0 <= result.seconds_left <= 25.0

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 6.0]))
    def advance(self, seconds: float) -> None:
        self.harness.advance(seconds)

    @rule(at=CHANNELS)
    def recover(self, at: int) -> None:
        self.harness.engine.consuming.recover(self.channels[at], self.harness.now)

    @rule(at=CHANNELS)
    def replace_channel(self, at: int) -> None:
        self.harness.engine.close_channel(self.channels[at], self.harness.now)
        self.channels[at] = self.harness.another_channel(confirm=True)

    @rule(name=NAMES, redeclare=st.booleans())
    def empty(self, name: str, redeclare: bool) -> None:
        if not redeclare:
            self.harness.engine.topology.purge_queue(self.harness.channel, name)
            return
        self.harness.engine.topology.delete_queue(self.harness.channel, name)
        self.harness.queue(name, **QUEUES[name])

    @invariant()
    def effects_belong_to_open_or_closed_channels(self) -> None:
        for effect in self.harness.take():
            if isinstance(effect, CloseChannel) and effect.channel in self.channels:
                at = self.channels.index(effect.channel)
                self.channels[at] = self.harness.another_channel(confirm=True)
            elif isinstance(effect, Deliver):
                assert effect.delivery.delivery_tag > 0

    @invariant()
    def every_message_is_somewhere_or_counted_as_gone(self) -> None:
        self.harness.engine.check_conservation()

    @invariant()
    def bodies_in_memory_are_counted(self) -> None:
        engine = self.harness.engine
        held = [
            entry
            for queue in engine.state.vhosts["/"].queues.values()
            for entry in (*queue.ready, *queue.deferred.entries())
        ]
        held += [e for channel in engine.state.channels.values() for e in channel.ledger.entries()]
        assert engine.state.paging.resident_bytes == sum(len(entry.message.body) for entry in held)

    @invariant()
    def in_flight_of_the_queues_is_in_flight_of_the_channels(self) -> None:
        engine = self.harness.engine
        by_channel = sum(
            1
            for channel in engine.state.channels.values()
            for entry in channel.ledger.entries()
            if not entry.queue.deleted
        )
        assert sum(stats.in_flight for stats in engine.stats()) == by_channel

    @invariant()
    def no_message_waits_beside_a_consumer_that_would_take_it(self) -> None:
        for queue in self.harness.engine.state.vhosts["/"].queues.values():
            assert not (queue.available and queue.ready), queue

    @invariant()
    def prefetch_and_limits_hold(self) -> None:
        for queue in self.harness.engine.state.vhosts["/"].queues.values():
            for consumer in queue.consumers:
                assert not consumer.prefetch or consumer.in_flight <= consumer.prefetch
                full = bool(consumer.prefetch) and consumer.in_flight >= consumer.prefetch
                assert consumer.available is not (full or consumer.channel.paused)
            most = queue.settings.max_length
            if most is not None and not queue.settings.rejects_publish:
                assert len(queue.ready) <= most
            if queue.settings.max_length_bytes is not None:
                assert queue.ready_bytes == sum(len(e.message.body) for e in queue.ready)

    @invariant()
    def nothing_is_overdue_that_nobody_would_wake_for(self) -> None:
        engine, now = self.harness.engine, self.harness.now
        due = engine.next_deadline()
        owners: list[ChannelState | Queue] = [
            *engine.state.channels.values(),
            *engine.state.vhosts["/"].queues.values(),
        ]
        times = [at for owner in owners if (at := owner.next_due()) is not None]
        assert due == min(times, default=None)
        engine.tick(now)  # what is due exactly now may be done already


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
