"""Exchanges, queues and bindings: made, checked, refused and deleted."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker_client.errors import InvalidNameError, TransportError, UnsupportedError
from broker_client.transport.base import Channel, Link, QueueState
from tests.contract.conftest import Place
from tests.contract.observers import Consumer, Watch, a_message, numbered, reply_code_of, until

pytestmark = pytest.mark.usefixtures("queue")


async def test_new_queue_is_empty_and_unused(channel: Channel) -> None:
    assert await channel.declare_queue("fresh") == QueueState("fresh", 0, 0)


async def test_declaring_again_alike_counts_messages_and_consumers(
    watch: Watch, channel: Channel, other_link: Link
) -> None:
    await watch.publish(*numbered(1, 3))
    assert await channel.declare_queue("q") == QueueState("q", 3, 0)
    consumer = await Consumer.start(await other_link.open_channel(), prefetch=1)
    await consumer.receives(1)
    assert await channel.declare_queue("q") == QueueState("q", 2, 1)
    assert await channel.check_queue("q") == QueueState("q", 2, 1)


async def test_queue_without_a_name_gets_one_from_the_broker(watch: Watch) -> None:
    first = await watch.channel.declare_queue("", exclusive=True)
    second = await watch.channel.declare_queue("", exclusive=True)
    assert first.name.startswith("amq.gen")
    assert first.name != second.name
    await watch.publish(a_message(to=first.name))
    assert await watch.depth(first.name) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"durable": False},
        {"auto_delete": True},
        {"arguments": {"x-message-ttl": 60_000}},
    ],
)
async def test_queue_declared_again_otherwise_is_refused(
    options: dict[str, Any], watch: Watch, link: Link
) -> None:
    assert await reply_code_of(watch.channel.declare_queue("q", **options)) == 406
    assert not watch.channel.is_usable
    assert link.is_open
    again = await link.open_channel()
    assert (await again.check_queue("q")).name == "q"


@pytest.mark.parametrize("options", [{"type": "direct"}, {"durable": False}, {"internal": True}])
async def test_exchange_declared_again_otherwise_is_refused(
    options: dict[str, Any], channel: Channel, link: Link
) -> None:
    await channel.declare_exchange("x", "topic")
    await channel.declare_exchange("x", "topic")
    assert await reply_code_of(channel.declare_exchange("x", **options)) == 406
    assert not channel.is_usable
    assert link.is_open


async def test_queue_argument_of_a_wrong_type_is_refused(channel: Channel) -> None:
    arguments = {"x-message-ttl": "soon"}
    assert await reply_code_of(channel.declare_queue("odd", arguments=arguments)) == 406


def deep(levels: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(levels):
        table = {"x": table}
    return table


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        [b"x", {"y": b"z"}],
        (1, "two", 3.0),
        bytearray(b"x"),
        -(2**63),
        Decimal("1.5"),
        datetime(2026, 1, 2, tzinfo=UTC),
        datetime(2026, 1, 2),  # noqa: DTZ001 - counts as UTC
        None,
        {"k" * 255: 1},
        deep(60),
    ],
    ids=repr,
)
async def test_argument_of_any_type_of_amqp_is_taken_and_compared(
    value: Any, channel: Channel
) -> None:
    arguments = {"v": value}
    await channel.declare_queue("odd", arguments=arguments)
    await channel.declare_queue("odd", arguments=arguments)
    await channel.declare_exchange("odd", "headers", arguments=arguments)
    await channel.bind_queue("odd", "odd", "", arguments)
    assert (await Consumer.start(channel, "odd", arguments=arguments)).tag
    await channel.unbind_queue("odd", "odd", "", arguments)
    await channel.delete_exchange("odd", if_unused=True)


@pytest.mark.parametrize(
    "value",
    [
        {1},
        object(),
        2**63,
        float("nan"),
        float("-inf"),
        Decimal(10) ** 40,
        date(2026, 1, 2),
        "\ud800",
        {1: "one", "two": 2},
        {"k" * 256: 1},
        deep(100),
        "x" * 200_000,
    ],
    ids=lambda value: ascii(value)[:30],
)
async def test_argument_that_amqp_cannot_carry_is_refused_before_it_is_sent(
    value: Any, channel: Channel
) -> None:
    arguments = {"v": value}
    await channel.declare_exchange("x", "headers")
    for asked in (
        channel.declare_queue("odd", arguments=arguments),
        channel.declare_exchange("odd", arguments=arguments),
        channel.bind_queue("q", "x", "", arguments),
        channel.unbind_queue("q", "x", "", arguments),
        channel.bind_exchange("x", "amq.topic", "", arguments),
        Consumer.start(channel, arguments=arguments),
    ):
        with pytest.raises(UnsupportedError, match=r"a (value|table)"):
            await asked
    assert (await channel.check_queue("q")).consumer_count == 0


@pytest.mark.parametrize("prefetch", [-1, 65_536])
async def test_prefetch_that_amqp_cannot_carry_is_refused(prefetch: int, channel: Channel) -> None:
    with pytest.raises(UnsupportedError, match="0 to 65535"):
        await channel.qos(prefetch)
    assert channel.is_usable


async def test_refusal_whose_text_is_cut_within_a_character_costs_the_channel_only(
    link: Link, place: Place
) -> None:
    if place.transport == "rabbitmq" and place.version >= (4, 3):
        pytest.skip("RabbitMQ 4.3 ends the connection itself, with 541 INTERNAL_ERROR")
    for name in ("ä" * 120, "n" + "ä" * 120):  # RabbitMQ: one of them is cut within an ä
        channel = await link.open_channel()
        assert await reply_code_of(channel.purge_queue(name)) == 404
    assert link.is_open
    assert (await (await link.open_channel()).check_queue("q")).message_count == 0


async def test_checking_a_missing_queue_closes_the_channel_with_404(channel: Channel) -> None:
    assert await reply_code_of(channel.check_queue("nowhere")) == 404
    assert not channel.is_usable


async def test_checking_a_missing_exchange_closes_the_channel_with_404(channel: Channel) -> None:
    assert await reply_code_of(channel.check_exchange("nowhere")) == 404
    assert not channel.is_usable


@pytest.mark.parametrize(
    "name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]
)
async def test_standard_exchange_is_there(name: str, channel: Channel) -> None:
    await channel.check_exchange(name)
    assert channel.is_usable


@pytest.mark.parametrize("name", ["*/?!", "smörgås", "with space", "n" * 255])
async def test_name_of_any_letters_is_good(name: str, watch: Watch) -> None:
    # AMQP 0-9-1 wants letters, digits and "-_.:"; RabbitMQ takes any UTF-8 of up to 255 bytes.
    channel = watch.channel
    await channel.declare_queue(name)
    await channel.declare_exchange(name, "topic")
    await channel.check_exchange(name)
    await channel.bind_queue(name, name, "#")
    await watch.publish(a_message(exchange=name))
    assert await channel.check_queue(name) == QueueState(name, 1, 0)
    assert (await Consumer.start(channel, name, consumer_tag=name)).tag == name
    await channel.unbind_queue(name, name, "#")
    await channel.delete_exchange(name)
    await channel.delete_queue(name)


@pytest.mark.parametrize(
    "name", ["n" * 256, "\N{GRINNING FACE}" * 64, "\ud800", None, 5, b"q"], ids=ascii
)
async def test_name_that_amqp_cannot_carry_is_refused_before_it_is_sent(
    name: Any, channel: Channel
) -> None:
    for asked in (
        channel.declare_queue(name),
        channel.check_queue(name),
        channel.purge_queue(name),
        channel.delete_queue(name),
        channel.declare_exchange(name),
        channel.declare_exchange("x", name),
        channel.check_exchange(name),
        channel.delete_exchange(name),
        channel.bind_queue("q", "amq.topic", name),
        channel.unbind_queue("q", name, "#"),
        channel.bind_exchange(name, "amq.topic", "#"),
        channel.unbind_exchange("x", "amq.topic", name),
        channel.get(name),
        channel.cancel(name),
        Consumer.start(channel, name),
        Consumer.start(channel, consumer_tag=name),
    ):
        with pytest.raises(InvalidNameError):
            await asked
    assert channel.is_usable


async def test_reserved_queue_name_is_refused(channel: Channel) -> None:
    assert await reply_code_of(channel.declare_queue("amq.mine")) == 403


async def test_reserved_exchange_name_is_refused(channel: Channel) -> None:
    assert await reply_code_of(channel.declare_exchange("amq.mine", "topic")) == 403


async def test_unknown_exchange_type_is_refused(channel: Channel) -> None:
    with pytest.raises(TransportError):  # RabbitMQ: 503 (command invalid) ends the connection
        await channel.declare_exchange("x", "tropic")
    assert not channel.is_usable


async def test_deleting_a_queue_says_how_many_messages_went(watch: Watch) -> None:
    await watch.publish(*numbered(1, 3))
    assert await watch.channel.delete_queue("q") == 3
    assert await reply_code_of(watch.channel.check_queue("q")) == 404


async def test_deleting_what_is_not_there_has_no_effect(channel: Channel) -> None:
    assert await channel.delete_queue("nowhere") == 0
    await channel.delete_exchange("nowhere")
    assert channel.is_usable


async def test_queue_with_a_consumer_is_not_deleted_if_unused(
    channel: Channel, other_link: Link
) -> None:
    watcher = await other_link.open_channel()
    await Consumer.start(watcher)
    assert await reply_code_of(channel.delete_queue("q", if_unused=True)) == 406
    assert (await watcher.check_queue("q")).consumer_count == 1


async def test_queue_with_messages_is_not_deleted_if_empty(watch: Watch, link: Link) -> None:
    await watch.publish(a_message())
    assert await reply_code_of(watch.channel.delete_queue("q", if_empty=True)) == 406
    assert (await (await link.open_channel()).check_queue("q")).message_count == 1


async def test_bound_exchange_is_not_deleted_if_unused(channel: Channel, link: Link) -> None:
    await channel.declare_exchange("x", "fanout")
    await channel.bind_queue("q", "x", "")
    assert await reply_code_of(channel.delete_exchange("x", if_unused=True)) == 406
    await (await link.open_channel()).check_exchange("x")


async def test_deleted_exchange_is_gone_with_its_bindings(watch: Watch) -> None:
    channel = watch.channel
    await channel.declare_exchange("x", "fanout")
    await channel.bind_queue("q", "x", "")
    await channel.delete_exchange("x")
    await channel.declare_exchange("x", "fanout")
    await watch.publish(a_message(exchange="x"))
    assert await watch.depth("q") == 0


async def test_standard_exchange_cannot_be_deleted(channel: Channel) -> None:
    assert await reply_code_of(channel.delete_exchange("amq.topic")) == 403


async def test_purge_takes_ready_messages_and_leaves_unsettled_ones(watch: Watch) -> None:
    await watch.publish(*numbered(1, 3))
    held = await watch.channel.get("q")
    assert held is not None
    assert await watch.channel.purge_queue("q") == 2
    watch.channel.nack(held.delivery_tag, requeue=True)
    await watch.has("q", 1)


async def test_purging_a_missing_queue_is_refused(channel: Channel) -> None:
    assert await reply_code_of(channel.purge_queue("nowhere")) == 404


async def test_binding_a_missing_queue_or_exchange_is_refused(link: Link) -> None:
    assert await reply_code_of((await link.open_channel()).bind_queue("no", "amq.topic", "")) == 404
    assert await reply_code_of((await link.open_channel()).bind_queue("q", "nowhere", "")) == 404
    assert (
        await reply_code_of((await link.open_channel()).bind_exchange("amq.topic", "no", "")) == 404
    )


async def test_default_exchange_takes_no_bindings(channel: Channel) -> None:
    assert await reply_code_of(channel.bind_queue("q", "", "other")) == 403


async def test_unbound_queue_gets_nothing_more(watch: Watch) -> None:
    channel = watch.channel
    await channel.bind_queue("q", "amq.direct", "a")
    await channel.bind_queue("q", "amq.direct", "b")
    await channel.unbind_queue("q", "amq.direct", "a")
    await watch.publish(
        a_message(b"a", to="a", exchange="amq.direct"),
        a_message(b"b", to="b", exchange="amq.direct"),
    )
    assert [delivery.body for delivery in await watch.drain("q")] == [b"b"]


async def test_undoing_a_binding_that_is_not_there_has_no_effect(channel: Channel) -> None:
    await channel.unbind_queue("q", "amq.direct", "never")
    assert channel.is_usable


async def test_exclusive_queue_is_locked_to_others(channel: Channel, other_link: Link) -> None:
    await channel.declare_queue("mine", exclusive=True)
    for refused in (
        (await other_link.open_channel()).check_queue("mine"),
        (await other_link.open_channel()).declare_queue("mine", exclusive=True),
        (await other_link.open_channel()).purge_queue("mine"),
        (await other_link.open_channel()).delete_queue("mine"),
        (await other_link.open_channel()).get("mine"),
    ):
        assert await reply_code_of(refused) == 405
    assert (await channel.check_queue("mine")).name == "mine"


async def test_exclusive_queue_goes_with_its_connection(link: Link, other_link: Link) -> None:
    await (await link.open_channel()).declare_queue("mine", exclusive=True)
    await link.close()

    async def is_gone() -> bool:
        return await reply_code_of((await other_link.open_channel()).check_queue("mine")) == 404

    await until(is_gone)  # a moment after the close; until then it is locked


async def test_auto_delete_queue_goes_with_its_last_consumer(channel: Channel) -> None:
    await channel.declare_queue("brief", auto_delete=True)
    first = await Consumer.start(channel, "brief")
    second = await Consumer.start(channel, "brief")
    await channel.cancel(first.tag)
    assert (await channel.check_queue("brief")).consumer_count == 1
    await channel.cancel(second.tag)
    assert await reply_code_of(channel.check_queue("brief")) == 404


async def test_auto_delete_exchange_goes_with_its_last_binding(channel: Channel) -> None:
    await channel.declare_exchange("brief", "topic", auto_delete=True)
    await channel.bind_queue("q", "brief", "a")
    await channel.bind_queue("q", "brief", "b")
    await channel.unbind_queue("q", "brief", "a")
    await channel.check_exchange("brief")
    await channel.unbind_queue("q", "brief", "b")
    assert await reply_code_of(channel.check_exchange("brief")) == 404


async def test_internal_exchange_takes_no_publishes(watch: Watch) -> None:
    await watch.channel.declare_exchange("hidden", "fanout", internal=True)
    await watch.channel.publish([a_message(exchange="hidden")])
    assert await watch.closed_with() == 403


async def test_queue_that_expires_unused_is_deleted(watch: Watch) -> None:
    await watch.channel.declare_queue("brief", arguments={"x-expires": 100})

    async def is_gone() -> bool:  # a passive declaration would count as use
        await watch.publish(a_message(to="brief", mandatory=True))
        return bool(watch.returns)

    await until(is_gone)
    assert await reply_code_of(watch.channel.check_queue("brief")) == 404
