"""Policies: which one applies, how it merges with arguments, and that it counts at once."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import CancelConsumer, CloseChannel
from broker_client.core.policies import Policy
from broker_client.errors import InvalidPolicyError, ReplyError
from tests.support.builders import EngineHarness, a_message


def policy(name: str, pattern: str = ".*", definition: Any = None, **fields: Any) -> Policy:
    return Policy("/", name, pattern, definition or {"max-length": 5}, **fields)


def set_policy(harness: EngineHarness, *arguments: Any, **fields: Any) -> None:
    harness.engine.policies.set_policy(policy(*arguments, **fields), harness.now)


def settings_of(harness: EngineHarness, queue: str = "q") -> Any:
    return harness.engine.state.vhosts["/"].queues[queue].settings


def test_the_policy_of_the_highest_priority_applies_and_no_other(harness: EngineHarness) -> None:
    harness.queue()
    set_policy(harness, "low", "^q", {"max-length": 5, "message-ttl": 1000})
    set_policy(harness, "high", "^q", {"max-length": 9}, priority=7)
    set_policy(harness, "other", "^z", {"max-length": 1}, priority=9)
    effective = harness.engine.state.vhosts["/"].queues["q"].policy
    assert (effective.policy, dict(effective.definition)) == ("high", {"max-length": 9})
    assert settings_of(harness).message_ttl is None
    assert [each.name for each in harness.engine.policies.policies("/")] == ["other", "high", "low"]


def test_of_two_policies_of_one_priority_the_first_by_name_applies(harness: EngineHarness) -> None:
    harness.queue()
    set_policy(harness, "b", "^q", {"max-length": 2})
    set_policy(harness, "a", "^q", {"max-length": 1})
    assert settings_of(harness).max_length == 1


def test_a_pattern_is_found_anywhere_unless_it_is_anchored(harness: EngineHarness) -> None:
    for name in ("orders", "old.orders", "other"):
        harness.queue(name)
    set_policy(harness, "p", "orders", {"max-length": 5})
    assert [settings_of(harness, n).max_length for n in ("orders", "old.orders", "other")] == [
        5,
        5,
        None,
    ]
    set_policy(harness, "p", "^orders$", {"max-length": 5})
    assert settings_of(harness, "old.orders").max_length is None


def test_an_empty_pattern_matches_every_name(harness: EngineHarness) -> None:
    harness.queue()
    set_policy(harness, "p", "")
    assert settings_of(harness).max_length == 5


@pytest.mark.parametrize(
    ("arguments", "definition", "name", "value"),
    [
        ({"max_length": 3}, {"max-length": 5}, "max_length", 3),
        ({"max_length": 8}, {"max-length": 5}, "max_length", 5),
        ({"message_ttl": 9000}, {"message-ttl": 5000}, "message_ttl", 5.0),
        ({"expires": 1000}, {"expires": 5000}, "expires", 1.0),
        ({"overflow": "reject-publish"}, {"overflow": "drop-head"}, "overflow", "reject-publish"),
        ({"dead_letter_exchange": "a"}, {"dead-letter-exchange": "b"}, "dead_letter_exchange", "a"),
        ({}, {"dead-letter-exchange": "b"}, "dead_letter_exchange", "b"),
        ({}, {"dead-letter-routing-key": "b"}, "dead_letter_routing_key", None),
        ({"queue_type": "quorum"}, {"delivery-limit": 3}, "delivery_limit", 3),
        ({}, {"delivery-limit": 3}, "delivery_limit", None),
        (
            {"queue_type": "quorum", "delivery_limit": -1},
            {"delivery-limit": 3},
            "delivery_limit",
            3,
        ),
        (
            {"queue_type": "quorum", "delivery_limit": 2},
            {"delivery-limit": -1},
            "delivery_limit",
            2,
        ),
        ({"queue_type": "quorum", "delivery_limit": 0}, {"delivery-limit": 3}, "delivery_limit", 0),
        ({"queue_type": "quorum", "delivery_limit": 5}, {"delivery-limit": 3}, "delivery_limit", 3),
        (
            {"queue_type": "quorum", "consumer_timeout": 9000},
            {"consumer-timeout": 5000},
            "consumer_timeout",
            5.0,
        ),
        ({}, {"consumer-timeout": 5000}, "consumer_timeout", None),
    ],
)
def test_limits_take_the_lower_number_and_all_else_the_argument(
    harness: EngineHarness, arguments: Any, definition: Any, name: str, value: Any
) -> None:
    harness.queue(**arguments)
    set_policy(harness, "p", "^q", definition)
    assert getattr(settings_of(harness), name) == value
    harness.engine.policies.delete_policy("/", "p", harness.now, is_operator=False)
    harness.queue(**arguments)  # its arguments are as they were
    harness.queue("fresh", **arguments)
    assert settings_of(harness) == settings_of(harness, "fresh")


@pytest.mark.parametrize(
    "without_effect",
    [{"alternate-exchange": "x"}, {"delivery-limit": 3}, {"consumer-timeout": 5000}],
)
def test_what_is_not_for_a_queue_of_this_type_keeps_nothing_else_from_it(
    harness: EngineHarness, without_effect: dict[str, Any]
) -> None:
    harness.queue()
    set_policy(harness, "p", "^q", {**without_effect, "max-length": 5})
    assert settings_of(harness).max_length == 5


def test_the_time_of_an_unused_queue_begins_when_its_policy_goes(harness: EngineHarness) -> None:
    harness.queue(expires=9000)
    set_policy(harness, "p", "^q", {"expires": 1000})
    harness.now += 0.5
    harness.engine.policies.delete_policy("/", "p", harness.now, is_operator=False)
    assert harness.engine.next_deadline() == harness.now + 9.0


def test_deleting_a_policy_tells_whether_it_was_there(harness: EngineHarness) -> None:
    set_policy(harness, "p", "^q")

    def delete(*, is_operator: bool) -> bool:
        return harness.engine.policies.delete_policy("/", "p", 0.0, is_operator=is_operator)

    assert not delete(is_operator=True)
    assert [each.name for each in harness.engine.policies.policies()] == ["p"]
    assert delete(is_operator=False)
    assert not delete(is_operator=False)


def test_an_operator_policy_limits_what_a_policy_asks_for(harness: EngineHarness) -> None:
    harness.queue()
    set_policy(harness, "user", "^q", {"max-length": 9, "message-ttl": 100})
    set_policy(harness, "guard", "^q", {"max-length": 5, "message-ttl": 900}, is_operator=True)
    effective = harness.engine.state.vhosts["/"].queues["q"].policy
    assert (effective.policy, effective.operator_policy) == ("user", "guard")
    assert dict(effective.definition) == {"max-length": 5, "message-ttl": 100}
    harness.engine.policies.delete_policy("/", "user", harness.now, is_operator=True)
    assert settings_of(harness).max_length == 5
    harness.engine.policies.delete_policy("/", "guard", harness.now, is_operator=True)
    assert settings_of(harness).max_length == 9


@pytest.mark.parametrize(
    ("apply_to", "classic", "quorum", "exchange"),
    [
        ("all", 1, 1, "spare"),
        ("queues", 1, 1, None),
        ("classic_queues", 1, None, None),
        ("quorum_queues", None, 1, None),
        ("streams", None, None, None),
        ("exchanges", None, None, "spare"),
    ],
)
def test_a_policy_applies_to_what_it_says(
    harness: EngineHarness,
    apply_to: str,
    classic: int | None,
    quorum: int | None,
    exchange: str | None,
) -> None:
    set_policy(
        harness, "p", ".*", {"max-length": 1, "alternate-exchange": "spare"}, apply_to=apply_to
    )
    harness.queue("classic")
    harness.queue("quorum", queue_type="quorum")
    harness.engine.topology.declare_exchange(harness.channel, "x", "direct")
    assert settings_of(harness, "classic").max_length == classic
    assert settings_of(harness, "quorum").max_length == quorum
    assert harness.engine.state.vhosts["/"].exchanges["x"].alternate == exchange


def test_a_lower_length_drops_the_oldest_at_once_and_dead_letters_them(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.queue("dead")
    harness.publish(*(a_message(body=b"%d" % i) for i in range(4)))
    set_policy(
        harness,
        "p",
        "^q$",
        {"max-length": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"},
    )
    assert harness.drain("dead") == [b"0", b"1", b"2"]
    assert harness.drain() == [b"3"]


def test_a_limit_in_bytes_counts_what_is_there_already(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(*(a_message(body=b"x" * 10) for _ in range(4)))
    set_policy(harness, "p", "^q", {"max-length-bytes": 25})
    assert harness.stats().ready == 2
    harness.engine.policies.delete_policy("/", "p", harness.now, is_operator=False)
    harness.publish(*(a_message(body=b"x" * 10) for _ in range(4)))
    set_policy(harness, "p", "^q", {"max-length-bytes": 55})
    assert harness.stats().ready == 5


def test_what_was_in_flight_counts_in_bytes_when_it_comes_back(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(*(a_message(body=b"x" * 10) for _ in range(3)))
    deliveries = [harness.get(), harness.get(), harness.get()]
    set_policy(harness, "p", "^q", {"max-length-bytes": 15})
    for delivery in deliveries:
        assert delivery is not None
        harness.nack(delivery.delivery_tag)
    assert harness.stats().ready == 1


def test_messages_keep_the_time_to_live_that_they_came_with(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(body=b"old"))
    set_policy(harness, "p", "^q", {"message-ttl": 1000})
    harness.advance(2.0)
    assert harness.drain() == [b"old"]
    harness.publish(a_message(body=b"new"))
    harness.advance(2.0)
    assert harness.drain() == []
    harness.publish(a_message(body=b"last"))
    harness.engine.policies.delete_policy("/", "p", harness.now, is_operator=False)
    harness.advance(2.0)
    assert harness.drain() == []


def test_the_time_of_an_unused_queue_begins_when_its_policy_comes(harness: EngineHarness) -> None:
    harness.queue()
    harness.advance(100.0)
    set_policy(harness, "p", "^q", {"expires": 5000})
    harness.advance(4.0)
    assert harness.stats().name == "q"
    harness.advance(2.0)
    assert harness.engine.stats() == ()


def test_a_consumer_that_is_there_gets_the_time_limit_of_the_policy() -> None:
    harness = EngineHarness(compatibility=(3, 13))
    harness.queue()
    harness.consume()
    set_policy(harness, "p", "^q", {"consumer-timeout": 2000})
    harness.publish(a_message())
    harness.advance(3.0)
    assert harness.channel not in harness.engine.state.channels


def test_a_policy_on_one_queue_leaves_the_time_limits_of_the_channels_other_queues() -> None:
    harness = EngineHarness(compatibility=(3, 10))
    for name, arguments in (("limited", {"x-consumer-timeout": 1000}), ("q", {})):
        harness.queue(name, arguments=arguments)
        harness.consume(name)
    set_policy(harness, "p", "^q", {"max-length": 5})
    harness.publish(a_message("limited"))
    harness.take()
    harness.advance(1.0)
    assert [type(each) for each in harness.take()] == [CloseChannel]


def test_a_consumer_with_a_time_limit_of_its_own_is_not_cancelled_by_that_of_a_policy(
    harness: EngineHarness,
) -> None:
    harness.queue(queue_type="quorum")
    harness.consume(arguments={"x-message-timeout": 5000})
    set_policy(harness, "p", "^q", {"consumer-timeout": 1000})
    harness.publish(a_message())
    harness.advance(1.0)
    assert (harness.stats().consumers, harness.stats().in_flight) == (1, 1)


def test_what_expires_does_so_under_a_policy_that_says_nothing_of_it(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message(expiration="1000"))
    set_policy(harness, "p", "^q", {"max-length": 5})
    harness.advance(1.0)
    assert harness.stats().ready == 0


def test_a_policy_without_a_time_limit_cancels_no_consumer_of_a_quorum_queue(
    harness: EngineHarness,
) -> None:
    harness.queue(queue_type="quorum", message_timeout=1000)
    harness.consume()
    set_policy(harness, "p", "^q", {"max-length": 5})
    harness.publish(a_message())
    harness.take()
    harness.advance(1.0)
    assert CancelConsumer not in map(type, harness.take())
    assert harness.stats().consumers == 1


def test_a_consumer_of_a_quorum_queue_is_cancelled_by_the_time_limit_of_a_policy(
    harness: EngineHarness,
) -> None:
    harness.queue(queue_type="quorum")
    tag = harness.consume()
    set_policy(harness, "p", "^q", {"consumer-timeout": 2000})
    harness.publish(a_message())
    harness.take()
    harness.advance(3.0)
    assert CancelConsumer(harness.channel, tag) in harness.take()
    assert harness.stats().ready == 1


def test_an_alternate_exchange_comes_and_goes_with_its_policy(harness: EngineHarness) -> None:
    topology = harness.engine.topology
    topology.declare_exchange(harness.channel, "x", "direct")
    harness.queue()
    harness.bind("q", "amq.fanout")
    harness.publish(a_message("nowhere", exchange="x"))
    set_policy(harness, "p", "^x$", {"alternate-exchange": "amq.fanout"})
    harness.publish(a_message("nowhere", b"1", exchange="x"))
    harness.engine.policies.delete_policy("/", "p", harness.now, is_operator=False)
    harness.publish(a_message("nowhere", b"2", exchange="x"))
    assert harness.drain() == [b"1"]


def test_the_default_exchange_has_no_alternate(harness: EngineHarness) -> None:
    harness.queue()
    harness.bind("q", "amq.fanout")
    set_policy(harness, "p", ".*", {"alternate-exchange": "amq.fanout"})
    harness.publish(a_message("nowhere", mandatory=True))
    assert len(harness.returns()) == 1
    assert harness.drain() == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"definition": {"message-ttl": -1}}, "-1 is not a valid message TTL (message-ttl)"),
        ({"definition": {"message-ttl": True}}, "True is not a valid message TTL"),
        ({"definition": {"expires": 0}}, "0 is not a valid queue expiry"),
        ({"definition": {"max-length": "5"}}, "'5' is not a valid maximum length"),
        ({"definition": {"overflow": "spill"}}, "'spill' is not a valid overflow value"),
        ({"definition": {"dead-letter-exchange": 1}}, "1 is not a valid dead letter exchange name"),
        (
            {"definition": {"mesage-ttl": 1}},
            "'mesage-ttl' is not a recognised policy setting; there are alternate-exchange, ",
        ),
        ({"definition": {}}, "no policy provided"),
        ({"pattern": "("}, "pattern '(' is invalid"),
        (
            {"apply_to": "everything"},
            "apply-to 'everything' unrecognised; should be one of 'all', 'exchanges', 'queues', ",
        ),
        ({"priority": "high"}, "priority should be a number, actually was 'high'"),
        ({"priority": 1 << 63}, "priority should be a number, actually was 9223372036854775808"),
        ({"name": ""}, "the name has 0 bytes"),
        ({"name": "\ud800"}, "the name holds half of a surrogate pair"),
        ({"pattern": "\ud800"}, "holds half of a surrogate pair"),
        (
            {"definition": {"dead-letter-exchange": "\ud800"}},
            "not a valid dead letter exchange name",
        ),
        (
            {"definition": {"dead-letter-exchange": "x"}, "is_operator": True},
            "'dead-letter-exchange' is not a recognised policy setting; there are delivery-limit,",
        ),
    ],
)
def test_a_policy_that_cannot_be_is_refused_and_changes_nothing(
    harness: EngineHarness, fields: dict[str, Any], problem: str
) -> None:
    whole = {"name": "p", "pattern": "^q", "definition": {"max-length": 5}, **fields}
    with pytest.raises(InvalidPolicyError) as refused:
        harness.engine.policies.set_policy(Policy("/", **whole), harness.now)
    assert problem in str(refused.value)
    assert harness.engine.policies.policies() == ()


def test_every_problem_of_a_policy_is_reported(harness: EngineHarness) -> None:
    definition = {"queue-mode": "lazy", "unknown": 1, "expires": 0, "max-length": -1}
    with pytest.raises(InvalidPolicyError) as refused:
        set_policy(harness, "p", "(", definition, apply_to="x")
    assert len(refused.value.problems) == 5


def test_settings_of_rabbitmq_that_change_nothing_here_are_kept_and_named() -> None:
    kept = policy("p", "^q", {"queue-mode": "lazy", "max-length": 5})
    assert kept.problems() == []
    assert kept.without_effect == ("queue-mode",)


def test_a_hostile_pattern_costs_little_and_matches_nothing(harness: EngineHarness) -> None:
    for i in range(20):
        harness.queue("a" * 200 + f"b{i}")
    set_policy(harness, "p", "^(a|a)*$", {"max-length": 1}, priority=9)
    set_policy(harness, "q", "b7$", {"max-length": 3})
    assert settings_of(harness, "a" * 200 + "b7").max_length == 3
    assert settings_of(harness, "a" * 200 + "b8").max_length is None


def test_a_policy_of_a_vhost_that_is_not_there_is_refused(harness: EngineHarness) -> None:
    with pytest.raises(ReplyError, match="vhost nope not found"):
        harness.engine.policies.set_policy(Policy("nope", "p", ".*", {"expires": 1}), 0.0)


def test_limits_of_a_vhost_refuse_what_is_beyond_them(harness: EngineHarness) -> None:
    engine = harness.engine
    harness.queue()
    engine.policies.set_limits("/", {"max-queues": 1, "max-connections": 1})
    harness.queue()
    with pytest.raises(ReplyError) as refused:
        harness.queue("two")
    assert str(refused.value) == (
        "406 PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost '/' (1) is "
        "reached"
    )
    with pytest.raises(ReplyError) as refused:
        engine.open_connection("/", user="guest")
    assert refused.value.scope == "connection"
    assert refused.value.reply_text == (
        "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (1) is "
        "reached"
    )
    engine.policies.set_limits("/", {"max-queues": -1})
    harness.queue("two")
    engine.open_connection("/")


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (
            {"max-channels": 1},
            "'max-channels' is not a limit; there are max-connections, max-queues",
        ),
        ({"max-queues": "1"}, "max-queues should be a number, actually was '1'"),
        ({"max-queues": True}, "max-queues should be a number, actually was True"),
    ],
)
def test_limits_that_are_none_are_refused(
    harness: EngineHarness, limits: Any, problem: str
) -> None:
    with pytest.raises(InvalidPolicyError) as refused:
        harness.engine.policies.set_limits("/", limits)
    assert refused.value.args == ("limits", "/", (problem,))
    assert harness.engine.policies.limits("/") == {}
