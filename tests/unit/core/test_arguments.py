"""Arguments of queues and consumers: what is taken, up to where, and in which words it is not."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker_client.core.arguments import (
    LONGEST_EXPIRATION,
    QueueSettings,
    alternate_exchange,
    check_arguments,
    check_flag,
    check_new_queue,
    consumer_message_timeout,
    consumer_priority,
    queue_settings,
    wire_type,
)
from broker_client.core.settings import NEWEST, RabbitMQVersion
from broker_client.errors import ReplyError


def settings(*, version: RabbitMQVersion = NEWEST, **arguments: Any) -> QueueSettings:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return queue_settings(named, "q", "/", version)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (127, "byte"),
        (-127, "byte"),
        (128, "short"),
        (32_767, "short"),
        (32_768, "signedint"),
        (2**31 - 1, "signedint"),
        (2**31, "long"),
        (True, "bool"),
        ("text", "longstr"),
        (b"bytes", "longstr"),
        (1.5, "double"),
        (Decimal(1), "decimal"),
        (datetime.now(UTC), "timestamp"),
        ([], "array"),
        ({}, "table"),
        (1j, "complex"),
    ],
)
def test_type_of_a_value_is_named_as_the_field_it_is_sent_in(value: object, name: str) -> None:
    assert wire_type(value) == name


@pytest.mark.parametrize(
    ("argument", "most_or_least", "setting", "beyond", "reason"),
    [
        ("message_ttl", 0, 0.0, -1, "{value_negative,-1}"),
        (
            "message_ttl",
            LONGEST_EXPIRATION,
            315_360_000.0,
            LONGEST_EXPIRATION + 1,
            "{value_too_large,315360000001}",
        ),
        ("expires", 1, 0.001, 0, "{value_zero,0}"),
        ("consumer_timeout", 1, 0.001, 0, "{value_zero,0}"),
        ("message_timeout", 0, 0.0, -1, "{value_negative,-1}"),
        ("max_length", 0, 0, -1, "{value_negative,-1}"),
        ("max_length_bytes", 0, 0, -1, "{value_negative,-1}"),
        ("max_priority", 255, 255, 256, "{max_value_exceeded,256}"),
        ("delivery_limit", -1, -1, -2, "{value_negative,-2}"),
    ],
)
def test_number_is_taken_up_to_its_bound_and_refused_beyond(
    argument: str, most_or_least: Any, setting: float, beyond: Any, reason: str
) -> None:
    assert getattr(settings(**{argument: most_or_least}), argument) == setting
    whole = f"invalid arg 'x-{argument.replace('_', '-')}' for queue 'q' in vhost '/': {reason}"
    with pytest.raises(ReplyError, match=re.escape(whole)):
        settings(**{argument: beyond})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"message_ttl": "5"},
            "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': "
            '"expected integer, got longstr"',
        ),
        (
            {"max_length": True},
            "invalid arg 'x-max-length' for queue 'q' in vhost '/': \"expected integer, got bool\"",
        ),
        (
            {"queue_type": 1},
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': {unacceptable_type,byte}",
        ),
        (
            {"queue_type": "heap"},
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': "
            "\"unsupported queue type 'heap'\"",
        ),
        (
            {"overflow": "spill"},
            "invalid arg 'x-overflow' for queue 'q' in vhost '/': invalid_overflow",
        ),
        (
            {"single_active_consumer": "yes"},
            "invalid arg 'x-single-active-consumer' for queue 'q' in vhost '/': "
            "{unacceptable_type,longstr}",
        ),
        (
            {"dead_letter_routing_key": "k"},
            "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': "
            "routing_key_but_no_dlx_defined",
        ),
        (
            {"dead_letter_exchange": 1},
            "invalid type 'byte' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'",
        ),
        ({"queue_type": "stream"}, "queue 'q' in vhost '/': x-queue-type 'stream'"),
    ],
)
def test_argument_that_cannot_be_is_refused_in_rabbitmqs_words(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ReplyError) as refused:
        settings(**arguments)
    assert refused.value.reply_text.endswith(f" - {reason}")


@pytest.mark.parametrize(
    ("version", "priorities", "cancels"), [((4, 3), (31, 4), True), ((4, 2), (0, 0), False)]
)
def test_quorum_queue_has_the_priorities_and_time_outs_of_its_version(
    version: RabbitMQVersion, priorities: tuple[int, int], cancels: bool
) -> None:
    found = settings(version=version, queue_type="quorum")
    assert (found.max_priority, found.default_priority) == priorities
    assert (found.quorum, found.cancels_on_timeout) == (True, cancels)
    own = settings(version=version, queue_type="quorum", max_priority=5)
    assert (own.max_priority, own.default_priority) == (5, 0)
    classic = settings(version=version)
    assert (classic.max_priority, classic.cancels_on_timeout, classic.quorum) == (0, False, False)


def test_flags_and_texts_are_those_of_the_declaration() -> None:
    found = settings(
        single_active_consumer=True,
        overflow="reject-publish-dlx",
        dead_letter_exchange="dead",
        dead_letter_routing_key="k",
    )
    assert (found.single_active, found.overflow) == (True, "reject-publish-dlx")
    assert (found.dead_letter_exchange, found.dead_letter_routing_key) == ("dead", "k")
    assert settings() == QueueSettings()


@pytest.mark.parametrize(
    ("arguments", "version", "refused"),
    [
        ({"x-queue-type": "quorum", "x-max-priority": 3}, (4, 2), "x-max-priority"),
        ({"x-max-priority": 3}, (4, 3), None),
        ({"x-consumer-timeout": 1000}, (4, 3), "x-consumer-timeout"),
        ({"x-consumer-timeout": 1000}, (4, 2), None),
        ({"x-queue-type": "quorum", "x-consumer-timeout": 1000}, (4, 3), None),
        ({"x-queue-type": "quorum"}, (4, 3), None),
    ],
)
def test_argument_of_another_type_of_queue_is_refused_for_a_new_one(
    arguments: dict[str, Any], version: RabbitMQVersion, refused: str | None
) -> None:
    if refused is None:
        check_new_queue(arguments, "q", "/", version)
        return
    kind = arguments.get("x-queue-type", "classic")
    text = f"invalid arg '{refused}' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue"
    with pytest.raises(ReplyError, match=re.escape(text)):
        check_new_queue(arguments, "q", "/", version)


def test_time_that_a_consumer_wants_is_in_milliseconds_and_within_the_most() -> None:
    def wanted(milliseconds: Any) -> float | None:
        return consumer_message_timeout({"x-message-timeout": milliseconds}, "q", 900.0)

    assert consumer_message_timeout({}, "q", 900.0) is None
    assert (wanted(1), wanted(900_000)) == (0.001, 900.0)
    for beyond, why in ((0, "{value_zero,0}"), (900_001, "{value_too_large,900001}")):
        text = f"invalid arg 'x-message-timeout' for consumer of queue 'q': {why}"
        with pytest.raises(ReplyError, match=re.escape(text)):
            wanted(beyond)


def test_priority_of_a_consumer_is_any_integer_and_zero_where_it_has_none() -> None:
    found = [
        consumer_priority(arguments, "q", "/")
        for arguments in ({}, {"x-priority": 5}, {"x-priority": -(2**63)})
    ]
    assert found == [0, 5, -(2**63)]
    text = "invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got double\""
    with pytest.raises(ReplyError, match=re.escape(text)):
        consumer_priority({"x-priority": 1.0}, "q", "/")
    with pytest.raises(ReplyError, match="value_negative"):
        consumer_priority({"x-priority": -(2**63) - 1}, "q", "/")


def test_alternate_exchange_is_a_name_or_none() -> None:
    assert alternate_exchange({}, "x", "/") is None
    assert alternate_exchange({"alternate-exchange": "spare"}, "x", "/") == "spare"
    text = "invalid type 'byte' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    with pytest.raises(ReplyError, match=re.escape(text)):
        alternate_exchange({"alternate-exchange": 1}, "x", "/")


@pytest.mark.parametrize(
    ("received", "current", "difference"),
    [
        (1, 2, "received '1' but current is '2'"),
        (None, True, "received none but current is the value 'true' of type 'bool'"),
        (1000, None, "received the value '1000' of type 'short' but current is none"),
    ],
)
def test_first_argument_that_differs_is_told_with_both_values(
    received: object, current: object, difference: str
) -> None:
    compared = ("x-same", "x-differs", "x-too")
    new = {"x-same": 1, "x-differs": received, "x-too": 1}
    old = {"x-same": 1.0, "x-differs": current, "x-too": 2}
    text = f"inequivalent arg 'x-differs' for queue 'q': {difference}"
    with pytest.raises(ReplyError, match=re.escape(text)):
        check_arguments("queue 'q'", compared, new, old)


def test_queue_of_no_type_is_a_classic_one_when_it_is_compared() -> None:
    compared = ("x-queue-type",)
    check_arguments("queue 'q'", compared, {}, {"x-queue-type": "classic"})
    check_arguments("queue 'q'", compared, {"x-queue-type": "classic"}, {})
    with pytest.raises(ReplyError, match="received 'classic' but current is 'quorum'"):
        check_arguments("queue 'q'", compared, {}, {"x-queue-type": "quorum"})


def test_flag_that_differs_is_told_with_both_values() -> None:
    check_flag("queue", "q", "/", "durable", True, True)
    for received, current, text in (
        (True, False, "arg 'durable' for queue 'q' in vhost '/': received 'true' but current is"),
        ("Topic", "direct", "received 'Topic' but current is 'direct'"),
    ):
        with pytest.raises(ReplyError, match=re.escape(text)):
            check_flag("queue", "q", "/", "durable", received, current)
