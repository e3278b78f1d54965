import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack, recovery_headers
from broker_client.config import Ack, Forward, Nack, Republish, Strategy
from broker_client.errors import (
    AlreadySettledError,
    BrokerClientError,
    ConfigError,
    MessageReturnedError,
    PublishError,
    PublishNackedError,
    PublishQueueFullError,
    PublishTimeoutError,
    PublishUnconfirmedError,
    RecoveryFailedError,
    StaleDeliveryError,
)
from broker_client.message import Delivery, Message, Outgoing, Properties
from broker_client.transport.base import Capabilities
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class Owner:
    """The subscription and its broker, as far as settling goes."""

    def __init__(self) -> None:
        self.can_defer = False
        self.dead_letter_exchange: str | None = None
        self.max_hops: int | None = None
        self.closing = asyncio.Event()
        self.default: tuple[Strategy, ...] = (Nack(requeue=True),)
        self.settled_as: list[str] = []
        self.lost: list[BrokerClientError] = []
        self.twice: list[AlreadySettledError] = []
        self.failures: list[RecoveryFailedError] = []
        self.republished: list[tuple[str, Outgoing]] = []
        self.forwarded: list[tuple[str, Mapping[str, Any], str | None]] = []
        self.publish_failure: Exception | None = None
        self.before_confirm: Callable[[], object] = lambda: None
        self.slept: list[float] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def republisher(self) -> "Owner":
        return self

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        self.republished.append((vhost, outgoing))
        self._publish()

    async def forward_copy(
        self,
        publication: str,
        message: Message,
        headers: Mapping[str, Any],
        routing_key: str | None,
    ) -> None:
        self.forwarded.append((publication, headers, routing_key))
        self._publish()

    def _publish(self) -> None:
        self.before_confirm()
        if self.publish_failure is not None:
            raise self.publish_failure

    async def pause(self, seconds: float) -> bool:
        self.slept.append(seconds)
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            return True
        return False

    def default_recovery(self, message: Message) -> tuple[Strategy, ...]:
        return self.default

    def another_try(self, message: Message) -> Nack:
        return Nack(requeue=True)

    def settled(self, settle: AckOrNack, how: str) -> None:
        self.settled_as.append(how)

    def settled_through(self, settle: AckOrNack, how: str) -> None:
        self.settled_as.append(f"{how} through")

    def settle_lost(self, settle: AckOrNack, error: BrokerClientError) -> None:
        self.lost.append(error)

    def settled_twice(self, error: AlreadySettledError) -> None:
        self.twice.append(error)

    def recovery_failed(self, error: RecoveryFailedError) -> None:
        self.failures.append(error)


class Desk:
    def __init__(self, headers: dict[str, Any] | None = None, **options: Any) -> None:
        self.owner = Owner()
        self.channel = FakeChannel(**options)
        properties = Properties(
            content_type="text/plain", headers=headers, message_id="m1", priority=3
        )
        delivery = Delivery("ctag", 7, False, "orders", "placed", b"body", properties)
        self.message = Message(delivery, queue="fulfil", vhost="/", touch=lambda tag: 0.0)
        self.settle = AckOrNack(self.owner, self.channel, self.message)

    @property
    def sent(self) -> list[tuple[Any, ...]]:
        return self.channel.settled


RETURNED = MessageReturnedError("republish to fulfil", "m1", 312, "NO_ROUTE", "", "fulfil")
ACK, DEAD = ("ack", 7, False), ("nack", 7, False, False)


def history(**queues: dict[str, Any]) -> dict[str, Any]:
    return {"rascal": {"recovery": queues}}


# --------------------------------------------------------------------------- ack, nack


async def test_without_an_error_it_acks() -> None:
    desk = Desk()
    await desk.settle()
    assert (desk.sent, desk.owner.settled_as) == ([ACK], ["acked"])


async def test_ack_of_all_is_multiple() -> None:
    desk = Desk()
    await desk.settle(all=True)
    assert (desk.sent, desk.owner.settled_as) == ([("ack", 7, True)], ["acked through"])


async def test_strategy_ack_acks() -> None:
    # rascal: its `ack` nacked, and a dead-letter exchange got the message.
    desk = Desk()
    await desk.settle("failed", Ack())
    assert desk.sent == [ACK]


async def test_strategy_ack_waits_for_its_defer() -> None:
    desk = Desk()
    task = asyncio.create_task(desk.settle("failed", Ack(defer=5.0)))
    await asyncio.sleep(4.9)
    assert desk.sent == []
    await task
    assert desk.sent == [ACK]


async def test_strategy_nack_does_not_requeue() -> None:
    desk = Desk()
    await desk.settle("failed", Nack())
    assert desk.sent == [DEAD]


async def test_strategy_nack_with_requeue_gives_back_at_once() -> None:
    desk = Desk()
    await desk.settle("failed", Nack(requeue=True))
    assert desk.sent == [("nack", 7, True, False)]


async def test_nack_of_all_is_multiple() -> None:
    desk = Desk()
    await desk.settle("failed", Nack(requeue=True), all=True)
    assert desk.sent == [("nack", 7, True, True)]


async def test_deferred_requeue_waits_here_where_the_broker_cannot() -> None:
    desk = Desk()
    task = asyncio.create_task(desk.settle("failed", Nack(requeue=True, defer=5.0)))
    await asyncio.sleep(4.9)
    assert desk.sent == []
    await task
    assert desk.sent == [("nack", 7, True, False)]


async def test_deferred_requeue_is_left_to_a_broker_that_can() -> None:
    desk = Desk(capabilities=Capabilities(deferred_requeue=True))
    desk.owner.can_defer = True
    await desk.settle("failed", Nack(requeue=True, defer=5.0))
    assert desk.sent == [("requeue_later", 7, 5.0)]
    assert desk.owner.slept == []


async def test_recovery_that_waits_gives_back_at_once_when_the_subscription_closes() -> None:
    desk = Desk()
    task = asyncio.create_task(desk.settle("failed", Republish(defer=60.0)))
    await settle()
    desk.owner.closing.set()
    await task
    assert desk.sent == [("nack", 7, True, False)]
    assert desk.owner.republished == []


# --------------------------------------------------------------------------- republish, forward


async def test_republish_publishes_a_mandatory_copy_to_the_queue_and_then_acks() -> None:
    desk = Desk({"x": 1})
    order: list[str] = []
    desk.owner.before_confirm = lambda: order.append(f"confirmed with {desk.sent}")
    await desk.settle(ValueError("bad"), Republish())
    [(vhost, copy)] = desk.owner.republished
    assert (vhost, copy.exchange, copy.routing_key, copy.mandatory) == ("/", "", "fulfil", True)
    assert copy.body == b"body"
    assert copy.properties._replace(headers=None) == desk.message.properties._replace(headers=None)
    assert order == ["confirmed with []"]
    assert (desk.sent, desk.owner.settled_as) == ([ACK], ["republished"])


async def test_republish_waits_for_its_defer() -> None:
    desk = Desk()
    task = asyncio.create_task(desk.settle("failed", Republish(defer=5.0)))
    await asyncio.sleep(4.9)
    assert desk.owner.republished == []
    await task
    assert len(desk.owner.republished) == 1


@pytest.mark.parametrize(("done", "republished"), [(0, True), (1, True), (2, False), (3, False)])
async def test_republish_declines_once_its_attempts_are_used_up(
    done: int, republished: bool
) -> None:
    # rascal: attempts 10 are 10 copies, so 11 deliveries.
    desk = Desk(history(fulfil={"republished": done}))
    await desk.settle("failed", Republish(attempts=2))
    assert bool(desk.owner.republished) is republished
    assert desk.sent == [ACK if republished else DEAD]


async def test_attempts_of_another_queue_do_not_count() -> None:
    desk = Desk(history(cemetery={"republished": 9}))
    await desk.settle("failed", Republish(attempts=1))
    assert len(desk.owner.republished) == 1


async def test_republish_without_attempts_goes_on_for_ever() -> None:
    desk = Desk(history(fulfil={"republished": 1_000_000}))
    await desk.settle("failed", Republish())
    assert len(desk.owner.republished) == 1


async def test_forward_publishes_through_the_publication_and_then_acks() -> None:
    desk = Desk()
    await desk.settle("failed", Forward(publication="errors", routing_key="a.b"))
    [(publication, headers, routing_key)] = desk.owner.forwarded
    assert (publication, routing_key) == ("errors", "a.b")
    assert headers["rascal"]["recovery"] == {"fulfil": {"forwarded": 1}}
    assert (desk.sent, desk.owner.settled_as) == ([ACK], ["forwarded"])


@pytest.mark.parametrize(("done", "forwarded"), [(1, True), (2, False)])
async def test_forward_declines_once_its_attempts_are_used_up(done: int, forwarded: bool) -> None:
    desk = Desk(history(fulfil={"forwarded": done}))
    await desk.settle("failed", Forward(publication="errors", attempts=2))
    assert bool(desk.owner.forwarded) is forwarded


# --------------------------------------------------------------------------- chains


async def test_chain_goes_on_to_the_first_strategy_that_does_not_decline() -> None:
    desk = Desk(history(fulfil={"republished": 2, "forwarded": 1}))
    chain = [
        Republish(attempts=2),
        Forward(publication="errors", attempts=1),
        Nack(requeue=True),
        Ack(),
    ]
    await desk.settle("failed", chain)
    assert desk.sent == [("nack", 7, True, False)]


async def test_chain_that_declines_to_its_end_nacks_without_requeue() -> None:
    desk = Desk(history(fulfil={"republished": 2}))
    await desk.settle("failed", [Republish(attempts=1), Republish(attempts=2)])
    assert desk.sent == [DEAD]


async def test_strategy_that_fails_passes_on_and_never_acks() -> None:
    # rascal: the copy was dropped by a missing queue, and the original acked.
    desk = Desk()
    desk.owner.publish_failure = RETURNED
    await desk.settle("failed", [Republish(), Nack(requeue=True)])
    assert desk.sent == [("nack", 7, True, False)]
    [failure] = desk.owner.failures
    assert failure.strategy == "republish"
    assert "returned" in str(failure)


async def test_every_strategy_failing_ends_in_a_nack_without_requeue() -> None:
    desk = Desk()
    desk.owner.publish_failure = RETURNED
    await desk.settle("failed", [Republish(), Forward(publication="errors")])
    assert desk.sent == [DEAD]
    assert [failure.strategy for failure in desk.owner.failures] == ["republish", "forward"]


@pytest.mark.parametrize(
    "failure",
    [
        PublishTimeoutError("republish to fulfil", "m1", 10.0, "the link is blocked"),
        PublishUnconfirmedError("republish to fulfil", "m1", 10.0, "the link is up"),
        PublishNackedError("republish to fulfil", "m1", "", "fulfil"),
        PublishQueueFullError("republish to fulfil", "m1", 9, "max_queued 9"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_copy_that_the_broker_had_no_word_on_gives_the_message_back(
    failure: PublishError,
) -> None:
    """without a dead-letter exchange, a nack for the sake of a blocked link loses it."""
    desk = Desk()
    desk.owner.publish_failure = failure
    await desk.settle("failed", [Republish(), Forward(publication="errors")])
    assert desk.sent == [("nack", 7, True, False)]
    assert len(desk.owner.failures) == 2


async def test_nack_at_the_end_of_a_chain_is_what_was_asked_for_whatever_failed_before() -> None:
    desk = Desk()
    desk.owner.publish_failure = PublishTimeoutError("republish to fulfil", "m1", 10.0, "blocked")
    await desk.settle("failed", [Republish(), Nack()])
    assert desk.sent == [DEAD]


async def test_fault_of_ours_in_a_strategy_passes_on_too() -> None:
    desk = Desk()
    desk.owner.publish_failure = KeyError("a bug")
    await desk.settle("failed", Republish())
    assert desk.sent == [DEAD]
    assert "KeyError" in str(desk.owner.failures[0])


async def test_without_a_chain_the_subscriptions_own_is_used() -> None:
    desk = Desk()
    await desk.settle("failed")
    assert desk.sent == [("nack", 7, True, False)]


async def test_empty_error_text_is_an_error_still() -> None:
    desk = Desk()
    await desk.settle("")
    assert desk.sent == [("nack", 7, True, False)]


async def test_chain_may_be_written_as_in_the_yaml() -> None:
    desk = Desk()
    await desk.settle(
        "failed", [{"strategy": "republish", "defer": "1s", "attempts": 10}, {"strategy": "nack"}]
    )
    assert desk.owner.slept == [1.0]
    assert len(desk.owner.republished) == 1


async def test_unknown_strategy_raises_and_leaves_the_message_to_be_settled() -> None:
    desk = Desk()
    with pytest.raises(ConfigError):
        await desk.settle("failed", {"strategy": "republsh"})
    assert not desk.settle.is_begun
    await desk.settle()
    assert desk.sent == [ACK]


# --------------------------------------------------------------------------- once, and in time


async def test_second_call_is_reported_and_never_sent() -> None:
    desk = Desk()
    await desk.settle()
    await desk.settle("failed", Nack())
    assert desk.sent == [ACK]
    [error] = desk.owner.twice
    assert (error.delivery_tag, error.consumer_tag) == (7, "ctag")


async def test_second_call_while_the_first_waits_is_reported() -> None:
    desk = Desk()
    first = asyncio.create_task(desk.settle("failed", Nack(requeue=True, defer=5.0)))
    await settle()
    await desk.settle()
    await first
    assert desk.sent == [("nack", 7, True, False)]
    assert len(desk.owner.twice) == 1


@pytest.mark.parametrize("chain", [None, Nack(), Republish(), Forward(publication="errors"), Ack()])
async def test_settling_after_the_channel_died_is_lost_and_nothing_is_sent(
    chain: Strategy | None,
) -> None:
    desk = Desk()
    desk.channel.fail()
    await desk.settle(None if chain is None else "failed", chain)
    assert (desk.sent, desk.owner.republished, desk.owner.forwarded) == ([], [], [])
    assert [type(error) for error in desk.owner.lost] == [StaleDeliveryError]


async def test_channel_that_dies_while_the_copy_is_confirmed_is_an_ack_lost() -> None:
    desk = Desk()
    desk.owner.before_confirm = desk.channel.fail
    await desk.settle("failed", Republish())
    assert (desk.sent, len(desk.owner.lost), len(desk.owner.republished)) == ([], 1, 1)


async def test_channel_that_dies_during_a_defer_publishes_no_copy() -> None:
    desk = Desk()
    task = asyncio.create_task(desk.settle("failed", Republish(defer=5.0)))
    await settle()
    desk.settle.lose()
    await task
    assert (desk.owner.republished, len(desk.owner.lost)) == ([], 1)


async def test_delivery_settled_along_with_a_later_one_is_not_settled_again() -> None:
    # RabbitMQ: a second ack of one tag closes the channel with 406.
    desk = Desk()
    desk.settle.cover(desk.settle)
    await desk.settle()
    assert (desk.sent, len(desk.owner.twice)) == ([], 1)


async def test_recovery_that_waits_while_a_later_one_settles_all_sends_nothing() -> None:
    desk = Desk()
    task = asyncio.create_task(desk.settle("failed", Nack(requeue=True, defer=5.0)))
    await settle()
    desk.settle.cover(desk.settle)
    await task
    assert (desk.sent, len(desk.owner.twice)) == ([], 1)


async def test_repr_tells_the_state() -> None:
    desk = Desk()
    assert repr(desk.settle) == "<AckOrNack 7: open>"
    await desk.settle()
    assert repr(desk.settle) == "<AckOrNack 7: settled>"


# --------------------------------------------------------------------------- headers


def test_headers_are_those_of_rascal() -> None:
    # rascal, lib/amqp/SubscriberError.js
    desk = Desk({"x": 1})
    headers = recovery_headers(desk.message, ValueError("bad"), {"republished": 1}, restore=True)
    assert headers == {
        "x": 1,
        "rascal": {
            "originalQueue": "fulfil",
            "originalVhost": "/",
            "originalExchange": "orders",
            "originalRoutingKey": "placed",
            "restoreRoutingHeaders": True,
            "recovery": {"fulfil": {"republished": 1}},
            "error": {"message": "bad"},
        },
    }


def test_headers_of_a_second_round_keep_the_first_origin_and_the_other_counters() -> None:
    first = {
        "originalQueue": "first",
        "originalVhost": "v1",
        "originalExchange": "x1",
        "originalRoutingKey": "k1",
        "recovery": {"fulfil": {"republished": 1, "forwarded": 4}, "first": {"forwarded": 2}},
        "error": {"message": "old", "code": "OLD"},
    }
    headers = recovery_headers(
        Desk({"rascal": first}).message, "new", {"republished": 2}, restore=False
    )
    assert headers["rascal"] == {
        **first,
        "restoreRoutingHeaders": False,
        "recovery": {"fulfil": {"republished": 2, "forwarded": 4}, "first": {"forwarded": 2}},
        "error": {"message": "new"},
    }


def test_headers_are_those_delivered_and_not_those_a_handler_made_of_them() -> None:
    desk = Desk({"x": {"y": 1}, **history(fulfil={"republished": 1})})
    desk.message.headers["x"]["y"] = "changed"
    desk.message.headers["new"] = 1
    desk.message.headers["rascal"]["recovery"]["fulfil"]["republished"] = 99
    headers = recovery_headers(desk.message, "bad", {"republished": 2}, restore=True)
    assert (headers["x"], "new" in headers) == ({"y": 1}, False)
    headers["x"]["y"] = "changed in the copy"
    assert desk.message.properties.headers is not None
    assert desk.message.properties.headers["x"] == {"y": 1}
    assert desk.message.republished == 1


def test_cc_and_bcc_are_left_out() -> None:
    desk = Desk({"CC": ["a"], "BCC": ["b"], "x": 1})
    headers = recovery_headers(desk.message, "bad", {}, restore=True)
    assert headers.keys() == {"x", "rascal"}


@pytest.mark.parametrize(("length", "kept"), [(1024, 1024), (1025, 1024), (5_000, 1024)])
def test_error_text_is_cut_to_1024_characters(length: int, kept: int) -> None:
    headers = recovery_headers(Desk().message, "e" * length, {}, restore=True)
    text = headers["rascal"]["error"]["message"]
    assert len(text) == kept
    assert text.endswith("...") is (length > 1024)


def test_code_of_an_error_goes_along() -> None:
    error = ValueError("bad")
    error.code = "E42"  # type: ignore[attr-defined] # as many libraries do
    headers = recovery_headers(Desk().message, error, {}, restore=True)
    assert headers["rascal"]["error"] == {"message": "bad", "code": "E42"}


@pytest.mark.parametrize(
    "headers",
    [
        {"rascal": "not a table"},
        {"rascal": {"recovery": "not a table"}},
        {"rascal": {"recovery": {"fulfil": ["not", "a", "table"]}}},
        {"rascal": None},
    ],
)
async def test_headers_of_anybodys_making_do_not_stop_recovery(headers: dict[str, Any]) -> None:
    desk = Desk(headers)
    await desk.settle("failed", Republish(attempts=1))
    [(_, copy)] = desk.owner.republished
    assert copy.properties.headers is not None
    assert copy.properties.headers["rascal"]["recovery"]["fulfil"] == {"republished": 1}
    assert desk.sent == [ACK]
