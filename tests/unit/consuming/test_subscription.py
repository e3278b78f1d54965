import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.config import Nack, SubscriptionConfig
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
from broker_client.runtime.tasks import TaskGroup
from broker_client.subscription import Subscription
from broker_client.transport.base import Capabilities
from tests.support.eventually import eventually
from tests.support.links import FakeChannel, FakeLink
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class Desk:
    """A subscription whose vhost and broker are the test itself."""

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
        self.subscription = Subscription(config, self, self, self.tasks)
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
        self,
        publication: str,
        message: Message,
        headers: Mapping[str, Any],
        routing_key: str | None,
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
        """Start with `handler`, which by default keeps what it gets; returns the channel."""
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
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    await desk.subscription.cancel()
    await desk.tasks.cancel()


async def ends(desk: Desk) -> None:
    await desk.subscription.cancel()
    await desk.tasks.cancel()


# --------------------------------------------------------------------------- the consumer


async def test_consumer_starts_with_the_first_message_listener(desk: Desk) -> None:
    desk.listen("subscribed", "error")
    await settle()
    assert desk.link.channels == []
    assert desk.subscription.stats().state == "idle"
    channel = await desk.consume()
    await desk.consume()
    assert len(desk.link.channels) == 1
    assert channel.asked == [("qos", 10), ("consume", "fulfil")]
    assert desk.events() == ["subscribed"]
    assert desk.subscription.is_subscribed


async def test_prefetch_is_set_before_consuming() -> None:
    desk = Desk(prefetch=250)
    channel = await desk.consume()
    assert channel.asked[0] == ("qos", 250)
    await ends(desk)


async def test_link_lost_and_back_consumes_again_without_an_error(desk: Desk) -> None:
    desk.listen("error", "subscribed", "cancelled")
    await desk.consume()
    desk.lose_link()
    await settle()
    assert not desk.subscription.is_subscribed
    desk.restore_link()
    await settle()
    assert desk.subscription.is_subscribed
    assert desk.events() == ["subscribed", "subscribed"]


async def test_channel_lost_alone_is_an_error_and_consumes_again_after_a_wait(desk: Desk) -> None:
    desk.listen("error", "subscribed")
    channel = await desk.consume()
    channel.fail(ChannelClosedError(406, "PRECONDITION_FAILED - unknown delivery tag"))
    await settle()
    assert desk.events() == ["subscribed", "error"]
    await asyncio.sleep(2.1)
    assert desk.subscription.is_subscribed
    assert desk.channel is not channel


async def test_consumer_cancelled_by_the_broker_restores_the_topology_and_consumes_again(
    desk: Desk,
) -> None:
    desk.listen("error", "cancelled", "subscribed")
    channel = await desk.consume()
    channel.cancel_consumer()
    await settle()
    assert not desk.subscription.is_subscribed
    assert isinstance(desk.what("cancelled")[0], ConsumerCancelledError)
    assert desk.restored == 1
    assert not channel.is_usable
    await asyncio.sleep(2.1)
    assert desk.events() == ["subscribed", "cancelled", "subscribed"]


async def test_cancel_by_the_broker_that_nobody_listens_to_is_an_error(desk: Desk) -> None:
    desk.listen("error")
    (await desk.consume()).cancel_consumer()
    await settle()
    assert isinstance(desk.what("error")[0], ConsumerCancelledError)


async def test_topology_that_cannot_be_restored_is_an_error_and_is_tried_again(
    desk: Desk,
) -> None:
    desk.listen("error", "cancelled")
    desk.restore_failure = TopologyError("/", "queue 'fulfil'", "405 locked")
    (await desk.consume()).cancel_consumer()
    await settle()
    assert isinstance(desk.what("error")[0], TopologyError)
    await asyncio.sleep(10.0)
    assert desk.subscription.is_subscribed


async def test_missing_queue_is_reported_and_declared_until_it_is_there(desk: Desk) -> None:
    missing = True

    def refuse(operation: str, name: str) -> None:
        if operation == "consume" and missing:
            desk.link.channels[-1].fail()
            raise ChannelClosedError(404, "NOT_FOUND - no queue 'fulfil'")

    desk.link.before = refuse
    desk.listen("error", "subscribed")
    desk.subscription.on("message", lambda *args: None)
    await asyncio.sleep(10.0)
    assert len(desk.what("error")) >= 3
    assert desk.restored >= 3
    missing = False
    await asyncio.sleep(10.0)
    assert desk.subscription.is_subscribed


async def test_waits_to_consume_again_grow() -> None:
    desk = Desk(retry={"min": 1.0, "max": 8.0, "stable_after": 60.0})
    times: list[float] = []
    desk.subscription.on("error", lambda error: times.append(asyncio.get_running_loop().time()))

    def refuse(operation: str, name: str) -> None:
        if operation == "consume":
            raise ChannelClosedError(403, "ACCESS_REFUSED")

    desk.link.before = refuse
    desk.subscription.on("message", lambda *args: None)
    await asyncio.sleep(40.0)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] < waits[1] < waits[2] < waits[3]
    assert waits[-1] == pytest.approx(8.0)
    await ends(desk)


async def test_retry_turned_off_ends_with_the_channel() -> None:
    desk = Desk(retry=False)
    desk.listen("error")
    (await desk.consume()).fail(ChannelClosedError(406, "no"))
    await asyncio.sleep(60.0)
    assert len(desk.link.channels) == 1
    assert desk.subscription.stats().state == "cancelled"
    await ends(desk)


async def test_closed_broker_ends_it(desk: Desk) -> None:
    desk.closed = True
    desk.listen("error")
    desk.subscription.on("message", lambda *args: None)
    await settle()
    assert desk.subscription.stats().state == "cancelled"
    assert desk.events() == []


# --------------------------------------------------------------------------- deliveries


async def test_handler_gets_message_content_and_ack_or_nack(desk: Desk) -> None:
    channel = await desk.consume()
    channel.deliver(b'{"id":7}', content_type="application/json")
    [(message, content, ack_or_nack)] = desk.kept
    assert (message.queue, message.routing_key, message.message_id) == ("fulfil", "placed", "m1")
    assert content == {"id": 7}
    assert desk.subscription.stats().unsettled == 1
    await ack_or_nack()
    assert channel.settled == [("ack", 1, False)]
    stats = desk.subscription.stats()
    assert (stats.unsettled, stats.delivered, stats.acked) == (0, 1, 1)


async def test_content_type_of_the_configuration_wins() -> None:
    desk = Desk(content_type="application/json")
    (await desk.consume()).deliver(b"[1]", content_type="text/plain")
    assert desk.kept[0][1] == [1]
    await ends(desk)


async def test_handler_may_be_plain_or_async(desk: Desk) -> None:
    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()

    channel = await desk.consume(handle)
    channel.deliver()
    await settle()
    assert channel.settled == [("ack", 1, False)]


@pytest.mark.parametrize("kind", ["plain", "async", "cancelled inside"])
async def test_handler_that_raises_is_an_error_and_its_message_is_recovered(kind: str) -> None:
    desk = Desk(recovery=[{"strategy": "nack"}])
    desk.listen("error")

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
    channel = await desk.consume(handler)
    channel.deliver()
    await settle()
    assert channel.settled == [("nack", 1, False, False)]
    [error] = desk.what("error")
    assert isinstance(error, HandlerError)
    assert error.message_id == "m1"
    assert error.__cause__ is not None
    assert desk.subscription.stats().handler_errors == 1
    await ends(desk)


async def test_handler_that_raises_after_settling_changes_nothing(desk: Desk) -> None:
    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        raise LookupError

    desk.listen("error", "already_settled")
    channel = await desk.consume(handle)
    channel.deliver()
    await settle()
    assert channel.settled == [("ack", 1, False)]
    assert desk.events() == ["error"]


async def test_default_recovery_requeues_later_each_time_it_fails_again(desk: Desk) -> None:
    def fail(*args: Any) -> None:
        raise LookupError

    desk.listen("error")
    channel = await desk.consume(fail)
    for wait in (1.0, 2.0, 4.0, 8.0, 10.0):
        before = asyncio.get_running_loop().time()
        tag = channel.deliver(message_id="same")
        await eventually(lambda tag=tag: len(channel.settled) >= tag, timeout=60.0)
        assert channel.settled[-1] == ("nack", tag, True, False)
        assert asyncio.get_running_loop().time() - before == pytest.approx(wait, abs=0.05)


async def test_default_recovery_is_left_to_a_broker_that_can_defer() -> None:
    desk = Desk(capabilities=Capabilities(deferred_requeue=True))

    def fail(*args: Any) -> None:
        raise LookupError

    desk.listen("error")
    channel = await desk.consume(fail)
    for _ in range(2):
        channel.deliver(message_id="same")
        await settle()
    assert channel.settled == [("requeue_later", 1, 1.0), ("requeue_later", 2, 2.0)]
    await ends(desk)


async def test_default_recovery_copes_with_ever_so_many_failures() -> None:
    desk = Desk(requeue_defer={"min": 0.001, "max": 0.01, "factor": 10.0})
    message = Message.__new__(Message)
    message.delivery = (await _a_delivery()).delivery
    message.queue = message.vhost = "x"
    chains = [desk.subscription._in_hand.default_recovery(message) for _ in range(2_000)]
    assert chains[-1] == (Nack(requeue=True, defer=0.01),)
    await ends(desk)


async def _a_delivery() -> Message:
    desk = Desk()
    (await desk.consume()).deliver()
    [(message, _, ack_or_nack)] = desk.kept
    await ack_or_nack()
    await ends(desk)
    return message


async def test_success_forgets_the_failures_before_it(desk: Desk) -> None:
    channel = await desk.consume()
    defers = []
    for fate in ("fail", "fail", "ack", "fail"):
        channel.deliver(message_id="same")
        _, _, ack_or_nack = desk.kept[-1]
        if fate == "ack":
            await ack_or_nack()
        else:
            before = asyncio.get_running_loop().time()
            await ack_or_nack("failed")
            defers.append(asyncio.get_running_loop().time() - before)
    assert defers == pytest.approx([1.0, 2.0, 1.0])


async def test_ack_of_all_settles_every_earlier_delivery_and_a_late_ack_is_not_sent(
    desk: Desk,
) -> None:
    desk.listen("already_settled")
    channel = await desk.consume()
    for _ in range(4):
        channel.deliver()
    await desk.kept[2][2](all=True)
    assert desk.subscription.stats().unsettled == 1
    assert desk.subscription.stats().acked == 3
    await desk.kept[0][2]()
    await desk.kept[3][2]()
    assert channel.settled == [("ack", 3, True), ("ack", 4, False)]
    assert desk.events() == ["already_settled"]


async def test_settle_after_the_channel_was_replaced_is_lost(desk: Desk) -> None:
    desk.listen("ack_lost", "error")
    await desk.consume()
    old = desk.channel
    old.deliver()
    desk.lose_link()
    desk.restore_link()
    await settle()
    desk.channel.deliver()
    await desk.kept[0][2]()
    assert (old.settled, desk.channel.settled) == ([], [])
    assert [message.message_id for message in desk.what("ack_lost")] == ["m1"]
    assert desk.events() == ["ack_lost"]
    assert desk.subscription.stats().lost_settles == 1
    assert desk.subscription.stats().unsettled == 1


async def test_no_ack_settles_nothing_and_reports_nothing() -> None:
    desk = Desk(options={"no_ack": True})
    desk.listen("ack_lost", "already_settled", "error")

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()

    channel = await desk.consume(handle)
    channel.deliver()
    await settle()
    assert (channel.settled, desk.events()) == ([], [])
    assert desk.subscription.stats().unsettled == 0
    await ends(desk)


# --------------------------------------------------------------------------- invalid content


async def test_invalid_content_that_nobody_listens_to_is_nacked_and_an_error(desk: Desk) -> None:
    desk.listen("error")
    channel = await desk.consume()
    channel.deliver(b"{", content_type="application/json")
    await settle()
    assert channel.settled == [("nack", 1, False, False)]
    assert isinstance(desk.what("error")[0], InvalidContentError)
    assert desk.kept == []


async def test_invalid_content_is_its_listeners_to_settle(desk: Desk) -> None:
    async def decide(error: Exception, message: Message, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()

    desk.listen("error")
    desk.subscription.on("invalid_content", decide)
    channel = await desk.consume()
    channel.deliver(b"{", content_type="application/json")
    await settle()
    assert (channel.settled, desk.events()) == ([("ack", 1, False)], [])


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_invalid_content_whose_listener_raises_is_recovered(kind: str) -> None:
    desk = Desk(recovery=[{"strategy": "nack"}])

    def fail(*args: Any) -> None:
        raise LookupError

    async def fail_later(*args: Any) -> None:
        raise LookupError

    desk.listen("error")
    desk.subscription.on("invalid_content", fail if kind == "plain" else fail_later)
    channel = await desk.consume()
    channel.deliver(b"{", content_type="application/json")
    await settle()
    assert channel.settled == [("nack", 1, False, False)]
    assert isinstance(desk.what("error")[0], HandlerError)
    await ends(desk)


# --------------------------------------------------------------------------- message time-out


async def test_message_timeout_is_told_and_a_later_settle_is_lost(desk: Desk) -> None:
    desk.listen("message_timeout", "ack_lost")
    channel = await desk.consume()
    tag = channel.deliver()
    channel.time_out(tag)
    assert [message.message_id for message in desk.what("message_timeout")] == ["m1"]
    assert desk.subscription.stats().unsettled == 0
    await desk.kept[0][2]()
    assert channel.settled == []
    assert desk.events() == ["message_timeout", "ack_lost"]


async def test_message_timeout_that_nobody_listens_to_is_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    channel = await desk.consume()
    with caplog.at_level(logging.WARNING):
        channel.time_out(channel.deliver())
        channel.time_out(99)
    assert caplog.text.count("was not settled in time") == 1


async def test_lost_settle_carries_why(desk: Desk) -> None:
    errors: list[Any] = []
    desk.subscription.on("ack_lost", lambda message, error: errors.append(error))
    channel = await desk.consume()
    channel.time_out(channel.deliver())
    await desk.kept[0][2]()
    assert isinstance(errors[0], StaleDeliveryError)


# --------------------------------------------------------------------------- cancelling


async def test_cancel_waits_for_running_handlers_and_their_acks(desk: Desk) -> None:
    finish = asyncio.Event()
    done: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await finish.wait()
        await ack_or_nack()
        await asyncio.sleep(1.0)
        done.append("after the ack")

    channel = await desk.consume(handle)
    channel.deliver()
    cancelling = asyncio.create_task(desk.subscription.cancel())
    await settle()
    assert ("cancel", "ctag1") in channel.asked
    assert not cancelling.done()
    finish.set()
    await cancelling
    assert channel.settled == [("ack", 1, False)]
    assert done == ["after the ack"]
    assert channel.how_ended == "closed"
    assert desk.subscription.stats().state == "cancelled"


async def test_cancel_gives_up_after_close_timeout_and_leaves_the_rest_to_the_broker() -> None:
    desk = Desk(close_timeout=5.0)
    cancelled: list[str] = []

    async def hang(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.message_id or "")
            raise

    channel = await desk.consume(hang)
    channel.deliver()
    before = asyncio.get_running_loop().time()
    await desk.subscription.cancel()
    assert asyncio.get_running_loop().time() - before == pytest.approx(5.0)
    assert (channel.settled, cancelled, channel.how_ended) == ([], ["m1"], "closed")
    await desk.tasks.cancel()


async def test_cancel_gives_back_at_once_what_waits_for_a_defer(desk: Desk) -> None:
    channel = await desk.consume()
    channel.deliver()
    recovering = asyncio.create_task(desk.kept[0][2]("failed", Nack(requeue=True, defer=600.0)))
    await settle()
    before = asyncio.get_running_loop().time()
    await desk.subscription.cancel()
    assert asyncio.get_running_loop().time() == before
    assert channel.settled == [("nack", 1, True, False)]
    await recovering


async def test_cancel_twice_and_at_once_waits_for_the_same_end(desk: Desk) -> None:
    channel = await desk.consume()
    channel.deliver()
    first = asyncio.create_task(desk.subscription.cancel())
    second = asyncio.create_task(desk.subscription.cancel())
    await settle()
    assert not first.done()
    assert not second.done()
    await desk.kept[0][2]()
    await asyncio.gather(first, second)
    assert channel.asked.count(("cancel", "ctag1")) == 1


async def test_cancel_by_a_handler_of_its_own_does_not_wait_for_it(desk: Desk) -> None:
    done: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        await desk.subscription.cancel()
        await desk.subscription.cancel()
        done.append("after cancel")

    channel = await desk.consume(handle)
    channel.deliver()
    await settle()
    assert done == ["after cancel"]
    assert channel.how_ended == "closed"


async def test_handler_that_cancels_its_subscription_may_settle_after_it(desk: Desk) -> None:
    cancelled: list[bool] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await desk.subscription.cancel()
        cancelled.append(desk.subscription.is_cancelled)
        await ack_or_nack()

    desk.listen("ack_lost", "error")
    channel = await desk.consume(handle)
    channel.deliver()
    before = asyncio.get_running_loop().time()
    await settle()
    assert cancelled == [True]
    assert channel.settled == [("ack", 1, False)]
    assert desk.events() == []
    assert channel.how_ended == "closed"
    assert asyncio.get_running_loop().time() == before


async def test_cancel_that_is_cancelled_ends_the_consumer_all_the_same() -> None:
    desk = Desk(close_timeout=60.0)
    channel = await desk.consume()
    channel.deliver()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await desk.subscription.cancel()
    await settle()
    assert not channel.is_usable
    assert desk.subscription.stats().state == "cancelled"
    async with asyncio.timeout(1.0):
        await desk.subscription.cancel()
    await desk.tasks.cancel()


async def test_cancel_before_it_began_never_begins(desk: Desk) -> None:
    await desk.subscription.cancel()
    desk.subscription.on("message", lambda *args: None)
    await settle()
    assert desk.link.channels == []


async def test_cancel_while_the_link_is_down_is_immediate(desk: Desk) -> None:
    desk.up.clear()
    desk.subscription.on("message", lambda *args: None)
    await settle()
    before = asyncio.get_running_loop().time()
    await desk.subscription.cancel()
    assert asyncio.get_running_loop().time() == before


async def test_cancel_while_subscribing_leaves_no_channel(desk: Desk) -> None:
    desk.listen("error", "subscribed")
    desk.subscription.on("message", lambda *args: None)
    while not desk.link.asked:  # noqa: ASYNC110 - the very turn is what counts
        await asyncio.sleep(0)
    await desk.subscription.cancel()
    await settle()
    assert not any(channel.is_usable for channel in desk.link.channels)
    assert desk.events() == []


async def test_link_lost_while_draining_ends_the_drain(desk: Desk) -> None:
    channel = await desk.consume()
    channel.deliver()
    cancelling = asyncio.create_task(desk.subscription.cancel())
    await settle()
    desk.lose_link()
    before = asyncio.get_running_loop().time()
    await cancelling
    assert asyncio.get_running_loop().time() == before


async def test_repr_tells_the_state(desk: Desk) -> None:
    assert repr(desk.subscription) == "<Subscription orders: idle, 0 unsettled>"
    (await desk.consume()).deliver()
    assert repr(desk.subscription) == "<Subscription orders: subscribed, 1 unsettled>"
    await desk.kept[0][2]()
