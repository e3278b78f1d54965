"""Which queues a message reaches, and what its publisher hears."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker_client.core.effects import Confirm, Return
from broker_client.core.engine import Engine
from broker_client.core.exchange import Binding, Destination, Exchange, HeadersMatch
from broker_client.core.records import Append
from broker_client.core.settings import EngineSettings, RabbitMQVersion
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT, TRANSIENT, Returned
from tests.support.builders import EngineHarness, a_message


def bound(
    harness: EngineHarness, exchange: str, *keys: str, queue: str = "q", **arguments: Any
) -> None:
    harness.queue(queue)
    for key in keys:
        harness.bind(queue, exchange, key, arguments)


def test_direct_routes_by_the_whole_key(harness: EngineHarness) -> None:
    bound(harness, "amq.direct", "a.b")
    harness.publish(a_message("a.b", b"1", exchange="amq.direct"))
    harness.publish(a_message("a.c", b"2", exchange="amq.direct"))
    assert harness.drain() == [b"1"]


def test_fanout_ignores_the_key(harness: EngineHarness) -> None:
    bound(harness, "amq.fanout", "a", queue="q")
    bound(harness, "amq.fanout", "b", queue="r")
    harness.publish(a_message("whatever", exchange="amq.fanout"))
    assert (harness.drain("q"), harness.drain("r")) == ([b"hello"], [b"hello"])


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.c", False),
        ("a.*.c", "a.b.b.c", False),
        ("#", "", True),
        ("#", "a.b", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b", False),
        ("#.z", "z", True),
        ("#.z", "a.b.z", True),
        ("#.z", "z.a", False),
        ("#.b.#", "a.b.c", True),
        ("*", "", False),
        ("*", "a", True),
        ("*.*", ".", True),
        ("", "", True),
        ("a.*", "a.", True),
        ("#.#", "a", True),
        ("a.b", "a.*", False),
    ],
)
def test_topic_patterns(harness: EngineHarness, pattern: str, key: str, matches: bool) -> None:
    bound(harness, "amq.topic", pattern)
    harness.publish(a_message(key, exchange="amq.topic"))
    assert bool(harness.drain()) is matches


@pytest.mark.parametrize(
    ("wanted", "headers", "matches"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({}, {"a": 1}, True),
        ({"x-seen": 1}, {}, True),
        ({"x-match": "all-with-x", "x-seen": 1}, {}, False),
        ({"x-match": "any-with-x", "x-seen": 1}, {"x-seen": 1}, True),
        ({"x-match": "all-with-x", "x-seen": 1}, {"x-seen": 1}, True),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": True}, False),
    ],
)
def test_headers_matching(
    harness: EngineHarness, wanted: dict[str, Any], headers: dict[str, Any], matches: bool
) -> None:
    harness.queue()
    harness.bind("q", "amq.headers", "", wanted)
    harness.publish(a_message("", exchange="amq.headers", headers=headers))
    assert bool(harness.drain()) is matches


ONE_SECOND = datetime.fromtimestamp(1, UTC)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
ALIKE: list[list[Any]] = [
    [True],
    [False],
    ["1", b"1"],
    ["\udfff", b"\xed\xbf\xbf"],
    [Decimal("1")],
    [Decimal("1.0")],
    [[], {}],
    [["1"]],
    [[b"1"]],
    [[1]],
    [[2]],
    [[1.0]],
    [{"a": 1}],
    [{"a": 2}],
    [{"a": 1.0}],
    [{"b": 1}],
]
"""Values that match those of their own group, and no others."""


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ((4, 0), [[1], [1.0], [2], [0], [0.0], [-0.0]]),
        ((3, 13), [[1, 1.0, ONE_SECOND], [2, 2.0], [0, 0.0, -0.0], [NOON]]),
    ],
)
def test_headers_compare_by_value_as_in_their_version(
    version: RabbitMQVersion, numbers: list[list[Any]]
) -> None:
    groups = [*numbers, *ALIKE]
    for group in groups:
        for wanted in group:
            match = HeadersMatch({"k": wanted}, version)
            fitting = [each for each in groups for sent in each if match.matches({"k": sent})]
            assert repr(fitting) == repr([group] * len(group)), wanted  # to Python, 1 is 1.0


@pytest.mark.parametrize(
    ("wanted", "sent", "matches"),
    [(ONE_SECOND, 1, True), (1, ONE_SECOND, False), (ONE_SECOND, ONE_SECOND, False)],
)
def test_a_time_in_a_binding_is_seconds_and_one_in_a_message_equals_nothing(
    wanted: object, sent: object, matches: bool
) -> None:
    assert HeadersMatch({"k": wanted}, (4, 0)).matches({"k": sent}) is matches


def test_a_bad_x_match_is_refused(harness: EngineHarness) -> None:
    harness.queue()
    for mode, what in (
        ("some", 'value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        (1, "type byte (value 1); expected longstr"),
    ):
        with pytest.raises(ReplyError, match=re.escape(f"Invalid x-match field {what}")):
            harness.bind("q", "amq.headers", "", {"x-match": mode})


def test_what_is_bound_already_is_bound_once() -> None:
    exchange = Exchange("x", "direct")
    binding = Binding("x", Destination("queue", "q"), "k", ())
    assert [exchange.bind(binding, {}) for _ in range(2)] == [True, False]
    assert [exchange.unbind(binding) for _ in range(2)] == [True, False]
    assert exchange.match(["k"], {}) == []


def test_two_bindings_to_one_queue_give_one_copy(harness: EngineHarness) -> None:
    bound(harness, "amq.topic", "a.#", "#.b")
    harness.publish(a_message("a.b", exchange="amq.topic"))
    assert harness.drain() == [b"hello"]


def test_one_of_two_bindings_goes_and_the_other_still_routes(harness: EngineHarness) -> None:
    bound(harness, "amq.direct", "k")
    harness.bind("q", "amq.direct", "k", {"another": 1})
    harness.engine.topology.unbind(
        harness.channel, Destination("queue", "q"), "amq.direct", "k", {}
    )
    harness.publish(a_message("k", exchange="amq.direct"))
    harness.engine.topology.unbind(
        harness.channel, Destination("queue", "q"), "amq.direct", "k", {"another": 1}
    )
    harness.publish(a_message("k", exchange="amq.direct"))
    assert harness.drain() == [b"hello"]


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_what_is_unbound_routes_no_more(harness: EngineHarness, exchange: str) -> None:
    here = Destination("queue", "q")
    bound(harness, exchange, "k")
    harness.engine.topology.unbind(harness.channel, here, exchange, "k", {})
    harness.publish(a_message("k", exchange=exchange, mandatory=True))
    assert len(harness.returns()) == 1


@pytest.mark.parametrize("other", [{"k": [2]}, {"k": {"a": 2}}, {"k": 1.0}, {"k": [1, 1]}])
def test_bindings_that_differ_in_what_an_argument_holds_are_two(
    harness: EngineHarness, other: dict[str, Any]
) -> None:
    here = Destination("queue", "q")
    for own in ({"k": [1]}, {"k": {"a": 1}}, {"k": 1}):
        bound(harness, "amq.direct", "k", **own)
        harness.engine.topology.unbind(harness.channel, here, "amq.direct", "k", other)
        harness.publish(a_message("k", exchange="amq.direct"))
        assert harness.drain() == [b"hello"]


def test_headers_are_compared_as_the_version_of_the_broker_does() -> None:
    for version, matches in (((3, 13), True), ((4, 0), False)):
        harness = EngineHarness(compatibility=version)
        bound(harness, "amq.headers", "", a=1)
        harness.publish(a_message("", exchange="amq.headers", headers={"a": 1.0}))
        assert bool(harness.drain()) is matches


def test_exchanges_bound_in_a_circle_deliver_once(harness: EngineHarness) -> None:
    for name in ("x", "y"):
        harness.engine.topology.declare_exchange(harness.channel, name, "fanout")
    harness.engine.topology.bind(harness.channel, Destination("exchange", "y"), "x", "", {})
    harness.engine.topology.bind(harness.channel, Destination("exchange", "x"), "y", "", {})
    bound(harness, "x", "")
    bound(harness, "y", "")
    harness.publish(a_message("k", exchange="x"))
    assert harness.drain() == [b"hello"]
    for _ in range(2):  # again is harmless
        harness.engine.topology.unbind(harness.channel, Destination("exchange", "y"), "x", "", {})
    harness.engine.topology.unbind(harness.channel, Destination("queue", "q"), "x", "", {})
    harness.publish(a_message("k", b"1", exchange="x"), a_message("k", b"2", exchange="y"))
    assert harness.drain() == [b"2"]


def test_the_alternate_exchange_gets_what_no_binding_takes(harness: EngineHarness) -> None:
    harness.engine.topology.declare_exchange(
        harness.channel, "x", "direct", arguments={"alternate-exchange": "amq.fanout"}
    )
    bound(harness, "x", "taken")
    bound(harness, "amq.fanout", "", queue="lost")
    harness.publish(a_message("taken", b"1", exchange="x"))
    harness.publish(a_message("other", b"2", exchange="x", mandatory=True))
    assert (harness.drain("q"), harness.drain("lost")) == ([b"1"], [b"2"])
    assert harness.returns() == []


def test_a_new_binding_counts_at_once(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message("k", b"before", exchange="amq.topic"))
    harness.bind("q", "amq.topic", "#", {})
    harness.publish(a_message("k", b"after", exchange="amq.topic"))
    assert harness.drain() == [b"after"]


def test_publishing_to_a_missing_exchange_is_refused_and_not_counted(
    harness: EngineHarness,
) -> None:
    with pytest.raises(ReplyError, match=r"^404 NOT_FOUND - no exchange 'x' in vhost '/'$"):
        harness.publish(a_message(exchange="x"))
    harness.queue()
    harness.publish(a_message())
    assert harness.confirms() == [(1, 1, True)]


def test_publishing_to_an_internal_exchange_is_refused(harness: EngineHarness) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "x", "fanout", internal=True)
    with pytest.raises(ReplyError, match=r"^403 "):
        harness.publish(a_message(exchange="x"))


def test_an_unroutable_mandatory_message_is_returned_before_its_confirm(
    harness: EngineHarness,
) -> None:
    message = a_message("nowhere", mandatory=True)
    harness.publish(message)
    returned = Returned(312, "NO_ROUTE", "", "nowhere", b"hello", message.properties)
    effects = harness.take()
    assert effects == [Return(harness.channel, returned), Confirm(harness.channel, 1, 1, True)]


def test_confirms_count_from_the_first_publish_after_they_were_asked_for(
    harness: EngineHarness,
) -> None:
    """and to ask again begins nothing anew."""
    channel = harness.another_channel()
    harness.queue()
    harness.publish(a_message(), a_message(), channel=channel)
    assert harness.confirms() == []
    harness.engine.publishing.confirm_select(channel)
    harness.publish(a_message(), channel=channel)
    harness.engine.publishing.confirm_select(channel)
    harness.publish(a_message(), channel=channel)
    assert harness.confirms() == [(1, 2, True)]


def test_confirms_of_several_publishes_come_as_one_range(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(), a_message("nowhere"), a_message())
    assert harness.confirms() == [(1, 3, True)]


def test_a_channel_without_confirms_hears_nothing(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(), channel=harness.another_channel())
    assert harness.take() == []


def test_cc_and_bcc_add_keys_and_only_bcc_is_taken_off(harness: EngineHarness) -> None:
    for name in ("q", "cc", "bcc"):
        harness.queue(name)
    harness.publish(a_message(headers={"CC": ["cc", "q"], "BCC": ["bcc"], "n": 1}))
    for name in ("q", "cc", "bcc"):
        delivery = harness.get(name)
        assert delivery is not None
        assert delivery.properties.headers == {"CC": ["cc", "q"], "n": 1}
        assert harness.get(name) is None


def test_cc_that_is_no_array_of_strings_is_refused(harness: EngineHarness) -> None:
    harness.queue()
    with pytest.raises(ReplyError, match=r'406 .*unacceptable_type_in_header,"CC",longstr'):
        harness.publish(a_message(headers={"CC": "q"}))
    assert harness.stats().ready == 0


@pytest.mark.parametrize("expiration", ["0", "-0", "+5", "00000000000000005", "315360000000"])
def test_an_expiration_is_any_whole_number_up_to_ten_years(
    harness: EngineHarness, expiration: str
) -> None:
    harness.queue()
    harness.consume()
    harness.publish(a_message(expiration=expiration))
    assert harness.bodies() == [b"hello"]


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        ("", "no_integer"),
        ("soon", "no_integer"),
        ("1.5", '{leftover_string,".5"}'),
        ("-1", "{value_negative,-1}"),
        ("-0010", "{value_negative,-10}"),
        ("315360000001", "{value_too_large,315360000001}"),
        ("+0315360000010", "{value_too_large,315360000010}"),
        ("9" * 300, f"{{value_too_large,{'9' * 300}}}"),
    ],
)
def test_a_bad_expiration_is_refused_in_rabbitmqs_words(
    harness: EngineHarness, expiration: str, reason: str
) -> None:
    harness.queue()
    with pytest.raises(ReplyError) as refused:
        harness.publish(a_message(expiration=expiration))
    assert refused.value.reply_code == 406
    assert refused.value.reply_text.endswith(f" - invalid expiration '{expiration}': {reason}")


def test_copies_in_several_queues_share_the_message(harness: EngineHarness) -> None:
    bound(harness, "amq.fanout", "", queue="q")
    bound(harness, "amq.fanout", "", queue="r")
    message = a_message("", exchange="amq.fanout", headers={"a": 1})
    harness.publish(message)
    first, second = harness.get("q"), harness.get("r")
    assert first is not None
    assert second is not None
    assert first.body is second.body is message.body
    assert first.properties is second.properties is message.properties


def test_an_empty_body_is_a_message(harness: EngineHarness) -> None:
    """nsq refuses it, AMQP does not."""
    harness.queue()
    harness.publish(a_message(body=b""))
    assert harness.drain() == [b""]


def test_confirms_of_a_channel_become_one_behind_its_records_and_returns() -> None:
    engine = Engine(EngineSettings(keep_records=True))
    connection = engine.open_connection("/")
    one, two = (engine.open_channel(connection, confirm=True) for _ in "12")
    engine.topology.declare_queue(one, "q", 0.0)
    engine.take_effects()
    kept, passing = (a_message(delivery_mode=mode) for mode in (PERSISTENT, TRANSIENT))
    for channel, message in ((one, kept), (one, kept), (one, passing), (two, kept), (one, kept)):
        engine.publishing.publish(channel, message, 0.0)
    lost = a_message("nowhere", mandatory=True)
    engine.publishing.publish(one, lost, 0.0)
    told = [
        (effect.channel, effect.first, effect.last) if isinstance(effect, Confirm) else type(effect)
        for effect in engine.take_effects()
    ]
    assert told == [
        *(Append, Append, Append, Append, Return),
        *((one, 1, 5), (two, 1, 1)),
    ]


def test_confirms_end_a_run_where_acks_and_nacks_change() -> None:
    harness = EngineHarness()
    harness.queue(max_length=1, overflow="reject-publish")
    harness.queue("any")
    for routing_key in ("any", "q", "q", "q", "any"):
        harness.publish(a_message(routing_key))
    assert harness.confirms() == [(1, 2, True), (3, 4, False), (5, 5, True)]
    harness.publish(a_message())
    assert harness.confirms() == [(6, 6, False)]
