import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any, cast

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.config import Forward, Nack, SubscriptionConfig
from broker_client.connection.vhost import Vhost
from broker_client.errors import (
    BrokerClosedError,
    ChannelClosedError,
    ConsumerCancelledError,
    HandlerError,
    InvalidContentError,
    StaleDeliveryError,
    TopologyError,
)
from broker_client.message import Message, Outgoing
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.tasks import TaskGroup
from broker_client.subscription import Subscription
from broker_client.transport.base import Capabilities
from tests.support.eventually import eventually
from tests.support.links import FakeChannel, FakeLink
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class VhostHarness:
    """A subscription with the test as vhost and broker."""

    def __init__(self, *, capabilities: Capabilities | None = None, **settings: Any) -> None:
        self.capabilities = capabilities or Capabilities()
        self.link = FakeLink(capabilities=self.capabilities)
        self.up = asyncio.Event()
        self.up.set()
        self.closed = False
        self.restored = 0
        self.restore_failure: Exception | None = None
        self.republished: list[Outgoing] = []
        self.tasks = TaskGroup("test")
        settings = {
            "retry": {"min": 1.0, "max": 8.0},
            "requeue_defer": {"min": 1.0, "max": 10.0},
            **settings,
        }
        config = SubscriptionConfig.model_validate(
            {"name": "orders", "queue": "fulfil", **settings}
        )
        self.subscription = Subscription(
            config, cast(Vhost, self), cast(Publisher, self), self.tasks
        )
        self.heard: list[tuple[str, Any]] = []

    # the vhost

    async def wait_up(self) -> FakeLink:
        await self.up.wait()
        if self.closed:
            raise BrokerClosedError
        return self.link

    async def restore_topology(self) -> None:
        self.restored += 1
        if self.restore_failure is not None:
            raise self.restore_failure

    # the broker

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        self.republished.append(outgoing)

    async def forward_copy(
        self, message: Message, headers: Mapping[str, Any], strategy: Forward
    ) -> None:
        raise AssertionError("nothing here forwards")

    # the test

    def listen(self, *events: str) -> None:
        for event in events:
            self.subscription.on(
                event,
                lambda *args, event=event: self.heard.append((event, args[0] if args else None)),
            )

    def events(self) -> list[str]:
        return [event for event, _ in self.heard]

    def what(self, event: str) -> list[Any]:
        return [what for name, what in self.heard if name == event]

    async def consume(self, handler: Any = None) -> FakeChannel:
        """Start with `handler`, which by default keeps its messages; returns the channel."""
        self.kept: list[tuple[Message, Any, AckOrNack]] = []
        self.subscription.on("message", handler or (lambda *args: self.kept.append(args)))
        await settle()
        return self.channel

    @property
    def channel(self) -> FakeChannel:
        return self.link.consuming()

    def lose_link(self) -> None:
        self.up.clear()
        self.link.lose()

    def restore_link(self) -> None:
        self.link = FakeLink(capabilities=self.capabilities)
        self.up.set()


@pytest.fixture
async def harness() -> AsyncIterator[VhostHarness]:
    harness = VhostHarness()
    yield harness
    await harness.subscription.cancel()
    await harness.tasks.cancel()


async def ends(harness: VhostHarness) -> None:
    await harness.subscription.cancel()
    await harness.tasks.cancel()


# --------------------------------------------------------------------------- the consumer


async def test_consumer_starts_with_the_first_message_listener(harness: VhostHarness) -> None:
    harness.listen("subscribed", "error")
    await settle()
    assert harness.link.channels == []
    assert harness.subscription.stats().state == "idle"
    channel = await harness.consume()
    await harness.consume()
    assert len(harness.link.channels) == 1
    assert channel.asked == [("qos", 10), ("consume", "fulfil")]
    assert harness.events() == ["subscribed"]
    assert harness.subscription.is_subscribed


async def test_prefetch_is_set_before_consuming() -> None:
    harness = VhostHarness(prefetch=250)
    channel = await harness.consume()
    assert channel.asked[0] == ("qos", 250)
    await ends(harness)


async def test_link_lost_and_back_consumes_again_without_an_error(harness: VhostHarness) -> None:
    harness.listen("error", "subscribed", "cancelled")
    await harness.consume()
    harness.lose_link()
    await settle()
    assert not harness.subscription.is_subscribed
    harness.restore_link()
    await settle()
    assert harness.subscription.is_subscribed
    assert harness.events() == ["subscribed", "subscribed"]


async def test_channel_lost_alone_is_an_error_and_consumes_again_after_a_wait(
    harness: VhostHarness,
) -> None:
    harness.listen("error", "subscribed")
    channel = await harness.consume()
    channel.fail(ChannelClosedError(406, "PRECONDITION_FAILED - unknown delivery tag"))
    await settle()
    assert harness.events() == ["subscribed", "error"]
    await asyncio.sleep(2.1)
    assert harness.subscription.is_subscribed
    assert harness.channel is not channel


async def test_consumer_cancelled_by_the_broker_restores_the_topology_and_consumes_again(
    harness: VhostHarness,
) -> None:
    harness.listen("error", "cancelled", "subscribed")
    channel = await harness.consume()
    channel.cancel_consumer()
    await settle()
    assert not harness.subscription.is_subscribed
    assert isinstance(harness.what("cancelled")[0], ConsumerCancelledError)
    assert harness.restored == 1
    assert not channel.is_usable
    await asyncio.sleep(2.1)
    assert harness.events() == ["subscribed", "cancelled", "subscribed"]


async def test_cancel_by_the_broker_without_a_listener_is_an_error(
    harness: VhostHarness,
) -> None:
    harness.listen("error")
    (await harness.consume()).cancel_consumer()
    await settle()
    assert isinstance(harness.what("error")[0], ConsumerCancelledError)


async def test_topology_that_cannot_be_restored_is_an_error_and_is_tried_again(
    harness: VhostHarness,
) -> None:
    harness.listen("error", "cancelled")
    harness.restore_failure = TopologyError("/", "queue 'fulfil'", "405 locked")
    (await harness.consume()).cancel_consumer()
    await settle()
    assert isinstance(harness.what("error")[0], TopologyError)
    await asyncio.sleep(10.0)
    assert harness.subscription.is_subscribed


async def test_missing_queue_is_reported_and_declared_until_it_is_there(
    harness: VhostHarness,
) -> None:
    missing = True

    def refuse(operation: str, name: str) -> None:
        if operation == "consume" and missing:
            harness.link.channels[-1].fail()
            raise ChannelClosedError(404, "NOT_FOUND - no queue 'fulfil'")

    harness.link.before = refuse
    harness.listen("error", "subscribed")
    harness.subscription.on("message", lambda *args: None)
    await asyncio.sleep(10.0)
    assert len(harness.what("error")) >= 3
    assert harness.restored >= 3
    missing = False
    await asyncio.sleep(10.0)
    assert harness.subscription.is_subscribed


async def test_waits_to_consume_again_grow() -> None:
    harness = VhostHarness(retry={"min": 1.0, "max": 8.0, "stable_after": 60.0})
    times: list[float] = []
    harness.subscription.on("error", lambda error: times.append(asyncio.get_running_loop().time()))

    def refuse(operation: str, name: str) -> None:
        if operation == "consume":
            raise ChannelClosedError(403, "ACCESS_REFUSED")

    harness.link.before = refuse
    harness.subscription.on("message", lambda *args: None)
    await asyncio.sleep(40.0)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] < waits[1] < waits[2] < waits[3]
    assert waits[-1] == pytest.approx(8.0)
    await ends(harness)


async def test_retry_turned_off_ends_with_the_channel() -> None:
    harness = VhostHarness(retry=False)
    harness.listen("error")
    (await harness.consume()).fail(ChannelClosedError(406, "no"))
    await asyncio.sleep(60.0)
    assert len(harness.link.channels) == 1
    assert harness.subscription.stats().state == "cancelled"
    await ends(harness)


async def test_closed_broker_ends_it(harness: VhostHarness) -> None:
    harness.closed = True
    harness.listen("error")
    harness.subscription.on("message", lambda *args: None)
    await settle()
    assert harness.subscription.stats().state == "cancelled"
    assert harness.events() == []


# --------------------------------------------------------------------------- deliveries


async def test_handler_gets_message_content_and_ack_or_nack(harness: VhostHarness) -> None:
    channel = await harness.consume()
    channel.deliver(b'{"id":7}', content_type="application/json")
    [(message, content, ack_or_nack)] = harness.kept
    assert (message.queue, message.routing_key, message.message_id) == ("fulfil", "placed", "m1")
    assert content == {"id": 7}
    assert harness.subscription.stats().unsettled == 1
    await ack_or_nack()
    assert channel.settled == [("ack", 1, False)]
    stats = harness.subscription.stats()
    assert (stats.unsettled, stats.delivered, stats.acked) == (0, 1, 1)


async def test_content_type_of_the_configuration_wins() -> None:
    harness = VhostHarness(content_type="application/json")
    (await harness.consume()).deliver(b"[1]", content_type="text/plain")
    assert harness.kept[0][1] == [1]
    await ends(harness)


async def test_handler_may_be_plain_or_async(harness: VhostHarness) -> None:
    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()

    channel = await harness.consume(handle)
    channel.deliver()
    await settle()
    assert channel.settled == [("ack", 1, False)]


@pytest.mark.parametrize("kind", ["plain", "async", "cancelled inside"])
async def test_handler_that_raises_is_an_error_and_its_message_is_recovered(kind: str) -> None:
    harness = VhostHarness(recovery=[{"strategy": "nack"}])
    harness.listen("error")

    def fail(*args: Any) -> None:
        raise LookupError("no such order")

    async def fail_later(*args: Any) -> None:
        await asyncio.sleep(0)
        raise LookupError("no such order")

    async def cancelled(*args: Any) -> None:
        inner = asyncio.create_task(asyncio.sleep(60.0))
        await asyncio.sleep(0)
        inner.cancel("no such order")
        await inner

    handler = {"plain": fail, "async": fail_later, "cancelled inside": cancelled}[kind]
    channel = await harness.consume(handler)
    channel.deliver()
    await settle()
    assert channel.settled == [("nack", 1, False, False)]
    [error] = harness.what("error")
    assert isinstance(error, HandlerError)
    assert error.message_id == "m1"
    assert error.__cause__ is not None
    assert harness.subscription.stats().handler_errors == 1
    await ends(harness)


async def test_handler_that_raises_after_settling_changes_nothing(harness: VhostHarness) -> None:
    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        raise LookupError

    harness.listen("error", "already_settled")
    channel = await harness.consume(handle)
    channel.deliver()
    await settle()
    assert channel.settled == [("ack", 1, False)]
    assert harness.events() == ["error"]


async def test_default_recovery_requeues_later_each_time_it_fails_again(
    harness: VhostHarness,
) -> None:
    def fail(*args: Any) -> None:
        raise LookupError

    harness.listen("error")
    channel = await harness.consume(fail)
    for wait in (1.0, 2.0, 4.0, 8.0, 10.0):
        before = asyncio.get_running_loop().time()
        tag = channel.deliver(message_id="same")
        await eventually(lambda tag=tag: len(channel.settled) >= tag, timeout=60.0)
        assert channel.settled[-1] == ("nack", tag, True, False)
        assert asyncio.get_running_loop().time() - before == pytest.approx(wait, abs=0.05)


async def test_default_recovery_is_left_to_a_broker_that_can_defer() -> None:
    harness = VhostHarness(capabilities=Capabilities(deferred_requeue=True))

    def fail(*args: Any) -> None:
        raise LookupError

    harness.listen("error")
    channel = await harness.consume(fail)
    for _ in range(2):
        channel.deliver(message_id="same")
        await settle()
    assert channel.settled == [("requeue_later", 1, 1.0), ("requeue_later", 2, 2.0)]
    await ends(harness)


async def test_default_recovery_waits_no_longer_than_its_limit_however_often_it_failed() -> None:
    harness = VhostHarness(
        capabilities=Capabilities(deferred_requeue=True),
        requeue_defer={"min": 0.001, "max": 0.01, "factor": 10.0},
    )

    def fail(*args: Any) -> None:
        raise LookupError

    harness.listen("error")
    channel = await harness.consume(fail)
    for _ in range(2_000):
        channel.deliver(message_id="same")
        await settle(4)
    assert channel.settled[-1] == ("requeue_later", 2_000, 0.01)
    await ends(harness)


async def test_success_forgets_the_failures_before_it(harness: VhostHarness) -> None:
    channel = await harness.consume()
    defers = []
    for fate in ("fail", "fail", "ack", "fail"):
        channel.deliver(message_id="same")
        _, _, ack_or_nack = harness.kept[-1]
        if fate == "ack":
            await ack_or_nack()
        else:
            before = asyncio.get_running_loop().time()
            await ack_or_nack("failed")
            defers.append(asyncio.get_running_loop().time() - before)
    assert defers == pytest.approx([1.0, 2.0, 1.0])


async def test_ack_of_all_settles_every_earlier_delivery_and_a_late_ack_is_not_sent(
    harness: VhostHarness,
) -> None:
    harness.listen("already_settled")
    channel = await harness.consume()
    for _ in range(4):
        channel.deliver()
    await harness.kept[2][2](all=True)
    assert harness.subscription.stats().unsettled == 1
    assert harness.subscription.stats().acked == 3
    await harness.kept[0][2]()
    await harness.kept[3][2]()
    assert channel.settled == [("ack", 3, True), ("ack", 4, False)]
    assert harness.events() == ["already_settled"]


async def test_settle_after_the_channel_was_replaced_is_lost(harness: VhostHarness) -> None:
    harness.listen("ack_lost", "error")
    await harness.consume()
    old = harness.channel
    old.deliver()
    harness.lose_link()
    harness.restore_link()
    await settle()
    harness.channel.deliver()
    await harness.kept[0][2]()
    assert (old.settled, harness.channel.settled) == ([], [])
    assert [message.message_id for message in harness.what("ack_lost")] == ["m1"]
    assert harness.events() == ["ack_lost"]
    assert harness.subscription.stats().lost_settles == 1
    assert harness.subscription.stats().unsettled == 1


async def test_no_ack_settles_nothing_and_reports_nothing() -> None:
    harness = VhostHarness(options={"no_ack": True})
    harness.listen("ack_lost", "already_settled", "error")

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()

    channel = await harness.consume(handle)
    channel.deliver()
    await settle()
    assert (channel.settled, harness.events()) == ([], [])
    assert harness.subscription.stats().unsettled == 0
    await ends(harness)


# --------------------------------------------------------------------------- invalid content


async def test_invalid_content_without_a_listener_is_nacked_and_an_error(
    harness: VhostHarness,
) -> None:
    harness.listen("error")
    channel = await harness.consume()
    channel.deliver(b"{", content_type="application/json")
    await settle()
    assert channel.settled == [("nack", 1, False, False)]
    assert isinstance(harness.what("error")[0], InvalidContentError)
    assert harness.kept == []


async def test_invalid_content_is_its_listeners_to_settle(harness: VhostHarness) -> None:
    async def decide(error: Exception, message: Message, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()

    harness.listen("error")
    harness.subscription.on("invalid_content", decide)
    channel = await harness.consume()
    channel.deliver(b"{", content_type="application/json")
    await settle()
    assert (channel.settled, harness.events()) == ([("ack", 1, False)], [])


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_invalid_content_whose_listener_raises_is_recovered(kind: str) -> None:
    harness = VhostHarness(recovery=[{"strategy": "nack"}])

    def fail(*args: Any) -> None:
        raise LookupError

    async def fail_later(*args: Any) -> None:
        raise LookupError

    harness.listen("error")
    harness.subscription.on("invalid_content", fail if kind == "plain" else fail_later)
    channel = await harness.consume()
    channel.deliver(b"{", content_type="application/json")
    await settle()
    assert channel.settled == [("nack", 1, False, False)]
    assert isinstance(harness.what("error")[0], HandlerError)
    await ends(harness)


# --------------------------------------------------------------------------- message time-out


async def test_message_timeout_is_reported_and_a_later_settle_is_lost(
    harness: VhostHarness,
) -> None:
    harness.listen("message_timeout", "ack_lost")
    channel = await harness.consume()
    tag = channel.deliver()
    channel.time_out(tag)
    assert [message.message_id for message in harness.what("message_timeout")] == ["m1"]
    assert harness.subscription.stats().unsettled == 0
    await harness.kept[0][2]()
    assert channel.settled == []
    assert harness.events() == ["message_timeout", "ack_lost"]


async def test_message_timeout_without_a_listener_is_logged(
    harness: VhostHarness, caplog: pytest.LogCaptureFixture
) -> None:
    channel = await harness.consume()
    with caplog.at_level(logging.WARNING):
        channel.time_out(channel.deliver())
        channel.time_out(99)
    assert caplog.text.count("was not settled in time") == 1


async def test_lost_settle_carries_why(harness: VhostHarness) -> None:
    errors: list[Any] = []
    harness.subscription.on("ack_lost", lambda message, error: errors.append(error))
    channel = await harness.consume()
    channel.time_out(channel.deliver())
    await harness.kept[0][2]()
    assert isinstance(errors[0], StaleDeliveryError)


# --------------------------------------------------------------------------- cancelling


async def test_cancel_waits_for_running_handlers_and_their_acks(harness: VhostHarness) -> None:
    finish = asyncio.Event()
    done: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await finish.wait()
        await ack_or_nack()
        await asyncio.sleep(1.0)
        done.append("after the ack")

    channel = await harness.consume(handle)
    channel.deliver()
    cancelling = asyncio.create_task(harness.subscription.cancel())
    await settle()
    assert ("cancel", "ctag1") in channel.asked
    assert not cancelling.done()
    finish.set()
    await cancelling
    assert channel.settled == [("ack", 1, False)]
    assert done == ["after the ack"]
    assert channel.how_ended == "closed"
    assert harness.subscription.stats().state == "cancelled"


async def test_cancel_gives_up_after_close_timeout_and_releases_the_rest() -> None:
    harness = VhostHarness(close_timeout=5.0)
    cancelled: list[str] = []

    async def hang(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.message_id or "")
            raise

    channel = await harness.consume(hang)
    channel.deliver()
    before = asyncio.get_running_loop().time()
    await harness.subscription.cancel()
    assert asyncio.get_running_loop().time() - before == pytest.approx(5.0)
    released = [("nack", 1, True, False)]
    assert (channel.settled, cancelled, channel.how_ended) == (released, ["m1"], "closed")
    await harness.tasks.cancel()


async def test_cancel_gives_back_at_once_what_waits_for_a_defer(harness: VhostHarness) -> None:
    channel = await harness.consume()
    channel.deliver()
    recovering = asyncio.create_task(harness.kept[0][2]("failed", Nack(requeue=True, defer=600.0)))
    await settle()
    before = asyncio.get_running_loop().time()
    await harness.subscription.cancel()
    assert asyncio.get_running_loop().time() == before
    assert channel.settled == [("nack", 1, True, False)]
    await recovering


async def test_cancel_twice_and_at_once_waits_for_the_same_end(harness: VhostHarness) -> None:
    channel = await harness.consume()
    channel.deliver()
    first = asyncio.create_task(harness.subscription.cancel())
    second = asyncio.create_task(harness.subscription.cancel())
    await settle()
    assert not first.done()
    assert not second.done()
    await harness.kept[0][2]()
    await asyncio.gather(first, second)
    assert channel.asked.count(("cancel", "ctag1")) == 1


async def test_cancel_by_a_handler_of_its_own_does_not_wait_for_it(harness: VhostHarness) -> None:
    done: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        await harness.subscription.cancel()
        await harness.subscription.cancel()
        done.append("after cancel")

    channel = await harness.consume(handle)
    channel.deliver()
    await settle()
    assert done == ["after cancel"]
    assert channel.how_ended == "closed"


async def test_handler_that_cancels_its_subscription_may_settle_after_it(
    harness: VhostHarness,
) -> None:
    cancelled: list[bool] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await harness.subscription.cancel()
        cancelled.append(harness.subscription.is_cancelled)
        await ack_or_nack()

    harness.listen("ack_lost", "error")
    channel = await harness.consume(handle)
    channel.deliver()
    before = asyncio.get_running_loop().time()
    await settle()
    assert cancelled == [True]
    assert channel.settled == [("ack", 1, False)]
    assert harness.events() == []
    assert channel.how_ended == "closed"
    assert asyncio.get_running_loop().time() == before


async def test_cancel_that_is_cancelled_ends_the_consumer_nevertheless() -> None:
    harness = VhostHarness(close_timeout=60.0)
    channel = await harness.consume()
    channel.deliver()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await harness.subscription.cancel()
    await settle()
    assert not channel.is_usable
    assert harness.subscription.stats().state == "cancelled"
    async with asyncio.timeout(1.0):
        await harness.subscription.cancel()
    await harness.tasks.cancel()


async def test_cancel_before_it_began_never_begins(harness: VhostHarness) -> None:
    await harness.subscription.cancel()
    harness.subscription.on("message", lambda *args: None)
    await settle()
    assert harness.link.channels == []


async def test_cancel_while_the_link_is_down_is_immediate(harness: VhostHarness) -> None:
    harness.up.clear()
    harness.subscription.on("message", lambda *args: None)
    await settle()
    before = asyncio.get_running_loop().time()
    await harness.subscription.cancel()
    assert asyncio.get_running_loop().time() == before


async def test_cancel_while_subscribing_leaves_no_channel(harness: VhostHarness) -> None:
    harness.listen("error", "subscribed")
    harness.subscription.on("message", lambda *args: None)
    while not harness.link.asked:  # noqa: ASYNC110 - the very turn is what counts
        await asyncio.sleep(0)
    await harness.subscription.cancel()
    await settle()
    assert not any(channel.is_usable for channel in harness.link.channels)
    assert harness.events() == []


async def test_link_lost_while_draining_ends_the_drain(harness: VhostHarness) -> None:
    channel = await harness.consume()
    channel.deliver()
    cancelling = asyncio.create_task(harness.subscription.cancel())
    await settle()
    harness.lose_link()
    before = asyncio.get_running_loop().time()
    await cancelling
    assert asyncio.get_running_loop().time() == before


async def test_repr_tells_the_state(harness: VhostHarness) -> None:
    assert repr(harness.subscription) == "<Subscription orders: idle, 0 unsettled>"
    (await harness.consume()).deliver()
    assert repr(harness.subscription) == "<Subscription orders: subscribed, 1 unsettled>"
    await harness.kept[0][2]()
