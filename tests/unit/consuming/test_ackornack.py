import asyncio
from enum import IntEnum
from typing import Any

import pytest

from broker_client.amqp.encode import check_publish
from broker_client.config import Ack, Forward, Nack, Republish, Strategy
from broker_client.consuming.recovery_headers import recovery_headers
from broker_client.errors import (
    ConfigError,
    MessageReturnedError,
    PublishError,
    PublishNackedError,
    PublishQueueFullError,
    PublishTimeoutError,
    PublishUnconfirmedError,
    StaleDeliveryError,
)
from broker_client.message import Outgoing, Properties
from broker_client.transport.base import Capabilities
from tests.support.consuming import SettlingHarness
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


RETURNED = MessageReturnedError("republish to fulfil", "m1", 312, "NO_ROUTE", "", "fulfil")
ACK, DEAD = ("ack", 7, False), ("nack", 7, False, False)


def history(**queues: dict[str, Any]) -> dict[str, Any]:
    return {"rascal": {"recovery": queues}}


# --------------------------------------------------------------------------- ack, nack


async def test_without_an_error_it_acks() -> None:
    harness = SettlingHarness()
    await harness.settle()
    assert (harness.sent, harness.outcomes) == ([ACK], ["acked"])


async def test_ack_of_all_is_multiple() -> None:
    harness = SettlingHarness()
    await harness.settle(all=True)
    assert (harness.sent, harness.outcomes) == ([("ack", 7, True)], ["acked"])


async def test_strategy_ack_acks() -> None:
    # rascal: its `ack` nacked, and a dead-letter exchange got the message.
    harness = SettlingHarness()
    await harness.settle("failed", Ack())
    assert harness.sent == [ACK]


async def test_strategy_ack_waits_for_its_defer() -> None:
    harness = SettlingHarness()
    task = asyncio.create_task(harness.settle("failed", Ack(defer=5.0)))
    await asyncio.sleep(4.9)
    assert harness.sent == []
    await task
    assert harness.sent == [ACK]


async def test_strategy_nack_does_not_requeue() -> None:
    harness = SettlingHarness()
    await harness.settle("failed", Nack())
    assert harness.sent == [DEAD]


async def test_strategy_nack_with_requeue_gives_back_at_once() -> None:
    harness = SettlingHarness()
    await harness.settle("failed", Nack(requeue=True))
    assert harness.sent == [("nack", 7, True, False)]


async def test_nack_of_all_is_multiple() -> None:
    harness = SettlingHarness()
    await harness.settle("failed", Nack(requeue=True), all=True)
    assert harness.sent == [("nack", 7, True, True)]


async def test_deferred_requeue_waits_here_where_the_broker_cannot() -> None:
    harness = SettlingHarness()
    task = asyncio.create_task(harness.settle("failed", Nack(requeue=True, defer=5.0)))
    await asyncio.sleep(4.9)
    assert harness.sent == []
    await task
    assert harness.sent == [("nack", 7, True, False)]


async def test_deferred_requeue_is_left_to_a_broker_that_can() -> None:
    harness = SettlingHarness(capabilities=Capabilities(deferred_requeue=True))
    await harness.settle("failed", Nack(requeue=True, defer=5.0))
    assert harness.sent == [("requeue_later", 7, 5.0)]


async def test_recovery_that_waits_gives_back_at_once_when_the_subscription_closes() -> None:
    harness = SettlingHarness()
    task = asyncio.create_task(harness.settle("failed", Republish(defer=60.0)))
    await settle()
    harness.recovery.close()
    await task
    assert harness.sent == [("nack", 7, True, False)]
    assert harness.publisher.republished == []


# --------------------------------------------------------------------------- republish, forward


async def test_republish_publishes_a_mandatory_copy_to_the_queue_and_then_acks() -> None:
    harness = SettlingHarness({"x": 1})
    order: list[str] = []
    harness.publisher.before_confirm = lambda: order.append(f"confirmed with {harness.sent}")
    await harness.settle(ValueError("bad"), Republish())
    [copy] = harness.publisher.republished
    assert (copy.exchange, copy.routing_key, copy.mandatory) == ("", "fulfil", True)
    assert copy.body == b"body"
    assert copy.properties._replace(headers=None) == harness.message.properties._replace(
        headers=None
    )
    assert order == ["confirmed with []"]
    assert (harness.sent, harness.outcomes) == ([ACK], ["republished"])


async def test_republish_waits_for_its_defer() -> None:
    harness = SettlingHarness()
    task = asyncio.create_task(harness.settle("failed", Republish(defer=5.0)))
    await asyncio.sleep(4.9)
    assert harness.publisher.republished == []
    await task
    assert len(harness.publisher.republished) == 1


@pytest.mark.parametrize(("done", "republished"), [(0, True), (1, True), (2, False), (3, False)])
async def test_republish_declines_once_its_attempts_are_used_up(
    done: int, republished: bool
) -> None:
    # rascal: attempts 10 are 10 copies, so 11 deliveries.
    harness = SettlingHarness(history(fulfil={"republished": done}))
    await harness.settle("failed", Republish(attempts=2))
    assert bool(harness.publisher.republished) is republished
    assert harness.sent == [ACK if republished else DEAD]


async def test_attempts_of_another_queue_do_not_count() -> None:
    harness = SettlingHarness(history(cemetery={"republished": 9}))
    await harness.settle("failed", Republish(attempts=1))
    assert len(harness.publisher.republished) == 1


async def test_republish_without_attempts_goes_on_forever() -> None:
    harness = SettlingHarness(history(fulfil={"republished": 1_000_000}))
    await harness.settle("failed", Republish())
    assert len(harness.publisher.republished) == 1


async def test_forward_publishes_through_the_publication_and_then_acks() -> None:
    harness = SettlingHarness()
    await harness.settle("failed", Forward(publication="errors", routing_key="a.b"))
    [(_, headers, strategy)] = harness.publisher.forwarded
    assert (strategy.publication, strategy.routing_key) == ("errors", "a.b")
    assert headers["rascal"]["recovery"] == {"fulfil": {"forwarded": 1}}
    assert (harness.sent, harness.outcomes) == ([ACK], ["forwarded"])


@pytest.mark.parametrize(("done", "forwarded"), [(1, True), (2, False)])
async def test_forward_declines_once_its_attempts_are_used_up(done: int, forwarded: bool) -> None:
    harness = SettlingHarness(history(fulfil={"forwarded": done}))
    await harness.settle("failed", Forward(publication="errors", attempts=2))
    assert bool(harness.publisher.forwarded) is forwarded


# --------------------------------------------------------------------------- chains


async def test_chain_goes_on_to_the_first_strategy_that_does_not_decline() -> None:
    harness = SettlingHarness(history(fulfil={"republished": 2, "forwarded": 1}))
    chain = [
        Republish(attempts=2),
        Forward(publication="errors", attempts=1),
        Nack(requeue=True),
        Ack(),
    ]
    await harness.settle("failed", chain)
    assert harness.sent == [("nack", 7, True, False)]


async def test_chain_that_declines_to_its_end_nacks_without_requeue() -> None:
    harness = SettlingHarness(history(fulfil={"republished": 2}))
    await harness.settle("failed", [Republish(attempts=1), Republish(attempts=2)])
    assert harness.sent == [DEAD]


async def test_strategy_that_fails_passes_on_and_never_acks() -> None:
    # rascal: the copy was dropped by a missing queue, and the original acked.
    harness = SettlingHarness()
    harness.publisher.failure = RETURNED
    await harness.settle("failed", [Republish(), Nack(requeue=True)])
    assert harness.sent == [("nack", 7, True, False)]
    [failure] = harness.reported["recovery_failed"]
    assert failure.strategy == "republish"
    assert "returned" in str(failure)


async def test_every_strategy_failing_ends_in_a_nack_without_requeue() -> None:
    harness = SettlingHarness()
    harness.publisher.failure = RETURNED
    await harness.settle("failed", [Republish(), Forward(publication="errors")])
    assert harness.sent == [DEAD]
    assert [failure.strategy for failure in harness.reported["recovery_failed"]] == [
        "republish",
        "forward",
    ]


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
    """without a dead-letter exchange, a nack because of a blocked link would lose it."""
    harness = SettlingHarness()
    harness.publisher.failure = failure
    await harness.settle("failed", [Republish(), Forward(publication="errors")])
    assert harness.sent == [("nack", 7, True, False)]
    assert len(harness.reported["recovery_failed"]) == 2


async def test_nack_at_the_end_of_a_chain_is_what_was_asked_for_whatever_failed_before() -> None:
    harness = SettlingHarness()
    harness.publisher.failure = PublishTimeoutError("republish to fulfil", "m1", 10.0, "blocked")
    await harness.settle("failed", [Republish(), Nack()])
    assert harness.sent == [DEAD]


async def test_fault_of_ours_in_a_strategy_passes_on_too() -> None:
    harness = SettlingHarness()
    harness.publisher.failure = KeyError("a bug")
    await harness.settle("failed", Republish())
    assert harness.sent == [DEAD]
    assert "KeyError" in str(harness.reported["recovery_failed"][0])


async def test_without_a_chain_the_subscriptions_own_is_used() -> None:
    harness = SettlingHarness()
    await harness.settle("failed")
    assert harness.sent == [("nack", 7, True, False)]


@pytest.mark.parametrize(("chosen", "lines"), [((), 1), ((Nack(),), 0)])
async def test_dead_letter_is_logged_where_the_chain_is_the_subscriptions_own(
    chosen: tuple[Strategy, ...], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    harness = SettlingHarness(recovery=[{"strategy": "nack"}])
    await harness.settle("failed", *chosen)
    assert harness.sent == [DEAD]
    assert len([each for each in caplog.messages if "was dead-lettered" in each]) == lines


async def test_error_that_a_message_was_settled_with_stays_with_it() -> None:
    harness, error = SettlingHarness(), ValueError("no")
    await harness.settle(error, Nack())
    assert harness.settle.error is error


async def test_empty_error_text_is_an_error_still() -> None:
    harness = SettlingHarness()
    await harness.settle("")
    assert harness.sent == [("nack", 7, True, False)]


async def test_chain_may_be_written_as_in_the_yaml() -> None:
    harness = SettlingHarness()
    began = asyncio.get_running_loop().time()
    await harness.settle(
        "failed", [{"strategy": "republish", "defer": "1s", "attempts": 10}, {"strategy": "nack"}]
    )
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)
    assert len(harness.publisher.republished) == 1


async def test_unknown_strategy_raises_and_leaves_the_message_to_be_settled() -> None:
    harness = SettlingHarness()
    with pytest.raises(ConfigError):
        await harness.settle("failed", {"strategy": "republsh"})
    assert not harness.settle.is_begun
    await harness.settle()
    assert harness.sent == [ACK]


# --------------------------------------------------------------------------- once, and in time


async def test_second_call_is_reported_and_never_sent() -> None:
    harness = SettlingHarness()
    await harness.settle()
    await harness.settle("failed", Nack())
    assert harness.sent == [ACK]
    [error] = harness.reported["already_settled"]
    assert (error.delivery_tag, error.consumer_tag) == (7, "ctag")


async def test_second_call_while_the_first_waits_is_reported() -> None:
    harness = SettlingHarness()
    first = asyncio.create_task(harness.settle("failed", Nack(requeue=True, defer=5.0)))
    await settle()
    await harness.settle()
    await first
    assert harness.sent == [("nack", 7, True, False)]
    assert len(harness.reported["already_settled"]) == 1


@pytest.mark.parametrize("chain", [None, Nack(), Republish(), Forward(publication="errors"), Ack()])
async def test_settling_after_the_channel_died_is_lost_and_nothing_is_sent(
    chain: Strategy | None,
) -> None:
    harness = SettlingHarness()
    harness.channel.fail()
    await harness.settle(None if chain is None else "failed", chain)
    assert (harness.sent, harness.publisher.republished, harness.publisher.forwarded) == (
        [],
        [],
        [],
    )
    assert [type(error) for error in harness.reported["ack_lost"]] == [StaleDeliveryError]


async def test_channel_that_dies_while_the_copy_is_confirmed_is_an_ack_lost() -> None:
    harness = SettlingHarness()
    harness.publisher.before_confirm = harness.channel.fail
    await harness.settle("failed", Republish())
    assert (
        harness.sent,
        len(harness.reported["ack_lost"]),
        len(harness.publisher.republished),
    ) == ([], 1, 1)


async def test_channel_that_dies_during_a_defer_publishes_no_copy() -> None:
    harness = SettlingHarness()
    task = asyncio.create_task(harness.settle("failed", Republish(defer=5.0)))
    await settle()
    harness.unacked.lose_all()
    await task
    assert (harness.publisher.republished, len(harness.reported["ack_lost"])) == ([], 1)


async def test_delivery_settled_along_with_a_later_one_is_not_settled_again() -> None:
    # RabbitMQ: a second ack of one tag closes the channel with 406.
    harness = SettlingHarness()
    await harness.settle_all_through_the_next()
    await harness.settle()
    assert (harness.sent, len(harness.reported["already_settled"])) == ([("ack", 8, True)], 1)


async def test_recovery_that_waits_while_a_later_one_settles_all_sends_nothing() -> None:
    harness = SettlingHarness()
    task = asyncio.create_task(harness.settle("failed", Nack(requeue=True, defer=5.0)))
    await settle()
    await harness.settle_all_through_the_next()
    await task
    assert (harness.sent, len(harness.reported["already_settled"])) == ([("ack", 8, True)], 1)


async def test_repr_tells_the_state() -> None:
    harness = SettlingHarness()
    assert repr(harness.settle) == "<AckOrNack 7: open>"
    await harness.settle()
    assert repr(harness.settle) == "<AckOrNack 7: settled>"


# --------------------------------------------------------------------------- headers


async def test_headers_are_those_of_rascal() -> None:
    # rascal, lib/amqp/SubscriberError.js
    harness = SettlingHarness({"x": 1})
    headers = recovery_headers(harness.message, ValueError("bad"), {"republished": 1}, restore=True)
    assert headers == {
        "x": 1,
        "rascal": {
            "originalQueue": "fulfil",
            "originalVhost": "/",
            "originalExchange": "orders",
            "originalRoutingKey": "placed",
            "restoreRoutingHeaders": True,
            "recovery": {"fulfil": {"republished": 1}},
            "error": {"message": "bad", "name": "ValueError"},
            "tries": 1,
        },
    }


async def test_headers_of_a_second_round_keep_the_first_origin_and_the_other_counters() -> None:
    first = {
        "originalQueue": "first",
        "originalVhost": "v1",
        "originalExchange": "x1",
        "originalRoutingKey": "k1",
        "recovery": {"fulfil": {"republished": 1, "forwarded": 4}, "first": {"forwarded": 2}},
        "error": {"message": "old", "code": "OLD"},
        "tries": 2,
    }
    headers = recovery_headers(
        SettlingHarness({"rascal": first}).message, "new", {"republished": 2}, restore=False
    )
    assert headers["rascal"] == {
        **first,
        "restoreRoutingHeaders": False,
        "recovery": {"fulfil": {"republished": 2, "forwarded": 4}, "first": {"forwarded": 2}},
        "error": {"message": "new"},
        "tries": 3,
    }


async def test_headers_are_those_delivered_and_not_those_a_handler_made_of_them() -> None:
    harness = SettlingHarness({"x": {"y": 1}, **history(fulfil={"republished": 1})})
    harness.message.headers["x"]["y"] = "changed"
    harness.message.headers["new"] = 1
    harness.message.headers["rascal"]["recovery"]["fulfil"]["republished"] = 99
    headers = recovery_headers(harness.message, "bad", {"republished": 2}, restore=True)
    assert (headers["x"], "new" in headers) == ({"y": 1}, False)
    headers["x"]["y"] = "changed in the copy"
    assert harness.message.properties.headers is not None
    assert harness.message.properties.headers["x"] == {"y": 1}
    assert harness.message.republished == 1


async def test_cc_and_bcc_are_left_out() -> None:
    harness = SettlingHarness({"CC": ["a"], "BCC": ["b"], "x": 1})
    headers = recovery_headers(harness.message, "bad", {}, restore=True)
    assert headers.keys() == {"x", "rascal"}


@pytest.mark.parametrize(("length", "kept"), [(1024, 1024), (1025, 1024), (5_000, 1024)])
async def test_error_text_is_cut_to_1024_characters(length: int, kept: int) -> None:
    headers = recovery_headers(SettlingHarness().message, "e" * length, {}, restore=True)
    text = headers["rascal"]["error"]["message"]
    assert len(text) == kept
    assert text.endswith("...") is (length > 1024)


async def test_code_of_an_error_goes_along() -> None:
    error = ValueError("bad")
    error.code = "E42"  # type: ignore[attr-defined] # as many libraries do
    headers = recovery_headers(SettlingHarness().message, error, {}, restore=True)
    assert headers["rascal"]["error"] == {"message": "bad", "name": "ValueError", "code": "E42"}


class HostileError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def code(self) -> int:
        raise RuntimeError("no code")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (TimeoutError(), {"message": "", "name": "TimeoutError"}),
        (ValueError("half \udc80 of"), {"message": "half ? of", "name": "ValueError"}),
        (
            HostileError(),
            {"message": "(its text cannot be read: RuntimeError)", "name": "HostileError"},
        ),
        ("only text", {"message": "only text"}),
    ],
)
async def test_note_of_an_error_is_one_that_any_broker_takes(
    error: Exception | str, note: dict[str, Any]
) -> None:
    headers = recovery_headers(SettlingHarness().message, error, {}, restore=True)
    assert headers["rascal"]["error"] == note


class Code(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (7, 7),
        (Code.SEVEN, 7),
        (-(2**63), -(2**63)),
        (2**63, None),
        (2**70, None),
        ("E\ud800", "E?"),
        ("E" * 200_000, "E" * 125 + "..."),
        (1.5, None),
        (["E1"], None),
    ],
)
async def test_code_of_an_error_is_shortened_or_left_out_where_no_header_can_carry_it(
    code: object, kept: object
) -> None:
    error = ValueError("bad")
    error.code = code  # type: ignore[attr-defined] # as many libraries do
    headers = recovery_headers(SettlingHarness().message, error, {}, restore=True)
    assert headers["rascal"]["error"].get("code") == kept
    check_publish(Outgoing("", "q", b"", Properties(headers=headers)))


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
    harness = SettlingHarness(headers)
    await harness.settle("failed", Republish(attempts=1))
    [copy] = harness.publisher.republished
    assert copy.properties.headers is not None
    assert copy.properties.headers["rascal"]["recovery"]["fulfil"] == {"republished": 1}
    assert harness.sent == [ACK]
