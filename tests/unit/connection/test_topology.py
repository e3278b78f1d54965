from typing import Any

import pytest

from broker_client.config.loader import load_config
from broker_client.connection.topology import Topology
from broker_client.errors import ChannelClosedError, TopologyError
from tests.support.links import FakeLink
from tests.support.warp import WarpLoop

loop_factory = WarpLoop

DECLARED: dict[str, Any] = {
    "exchanges": {
        "orders": {},
        "events": {"type": "fanout"},
        "theirs": {"assert": False, "check": True},
    },
    "queues": {
        "fulfil": {"purge": True},
        "audit": {},
        "other": {"assert": False, "check": True},
        "unseen": {"assert": False},
    },
    "bindings": {
        "b1": {"source": "orders", "destination": "fulfil", "binding_keys": ["a", "b"]},
        "b2": {"source": "orders", "destination": "events", "destination_type": "exchange"},
    },
}


def a_topology(**changes: Any) -> Topology:
    config = load_config({"vhosts": {"/": {**DECLARED, **changes}}})
    return Topology(config.vhosts["/"])


async def test_everything_is_made_in_the_order_of_rascal() -> None:
    link = FakeLink()
    await a_topology().establish(link, purge=True)
    assert link.asked == [
        ("declare_exchange", "orders", "topic"),
        ("declare_exchange", "events", "fanout"),
        ("check_exchange", "theirs"),
        ("declare_queue", "fulfil"),
        ("declare_queue", "audit"),
        ("check_queue", "other"),
        ("purge_queue", "fulfil"),
        ("bind_queue", "fulfil", "orders", "a"),
        ("bind_queue", "fulfil", "orders", "b"),
        ("bind_exchange", "events", "orders", "#"),
    ]


async def test_reconnecting_purges_nothing() -> None:
    link = FakeLink()
    await a_topology().establish(link, purge=False)
    assert not any(question[0] == "purge_queue" for question in link.asked)


async def test_channels_are_closed_when_it_is_done() -> None:
    link = FakeLink()
    await a_topology(concurrency=3).establish(link, purge=False)
    assert [channel.how_ended for channel in link.channels] == ["closed"] * 3


async def test_concurrency_spreads_each_phase_and_keeps_phases_apart() -> None:
    link, order = FakeLink(), list[str]()
    link.before = lambda operation, name: order.append(operation)
    await a_topology(concurrency=2).establish(link, purge=False)
    assert [question[1] for question in link.channels[0].asked][:2] == ["orders", "theirs"]
    assert link.channels[1].asked[0] == ("declare_exchange", "events", "fanout")
    phases = ["declare_exchange", "check_exchange", "declare_queue", "check_queue"]
    firsts = [order.index(phase) for phase in phases]
    lasts = [len(order) - 1 - order[::-1].index(phase) for phase in phases]
    assert all(last < first for last, first in zip(lasts, firsts[1:], strict=False))


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_refused_entity_is_named_and_the_channels_are_dropped(concurrency: int) -> None:
    link = FakeLink()

    def refuse(operation: str, name: str) -> None:
        if (operation, name) == ("declare_queue", "audit"):
            raise ChannelClosedError(406, "PRECONDITION_FAILED - inequivalent arg 'durable'")

    link.before = refuse
    with pytest.raises(
        TopologyError, match=r"vhost '/': queue 'audit': 406 PRECONDITION_FAILED - inequivalent"
    ):
        await a_topology(concurrency=concurrency).establish(link, purge=False)
    assert not any(channel.is_usable for channel in link.channels)


async def test_refused_binding_is_named_with_its_ends() -> None:
    link = FakeLink()

    def refuse(operation: str, name: str) -> None:
        if operation == "bind_queue":
            raise ChannelClosedError(404, "NOT_FOUND")

    link.before = refuse
    with pytest.raises(TopologyError, match=r"binding 'orders'\[a, b\] -> queue 'fulfil'"):
        await a_topology().establish(link, purge=False)


async def test_lost_link_is_not_blamed_on_the_entity() -> None:
    link = FakeLink()

    def lose(operation: str, name: str) -> None:
        if operation == "declare_queue":
            link.lose()
            raise ChannelClosedError(0, "the link is gone")

    link.before = lose
    with pytest.raises(ChannelClosedError, match="the link is gone"):
        await a_topology().establish(link, purge=False)


async def test_failed_open_of_a_channel_leaves_none_open() -> None:
    link = FakeLink()
    open_channel = link.open_channel

    async def two_only(*, confirm: bool = False) -> Any:
        if len(link.channels) == 2:
            raise ChannelClosedError(0, "no more channels")
        return await open_channel(confirm=confirm)

    link.open_channel = two_only  # type: ignore[method-assign]
    with pytest.raises(ChannelClosedError, match="no more"):
        await a_topology(concurrency=3).establish(link, purge=False)
    assert not any(channel.is_usable for channel in link.channels)


async def test_purge_empties_every_queue_and_counts() -> None:
    link = FakeLink()
    assert await a_topology().purge(link) == 4 * 3
    assert {question[0] for question in link.asked} == {"purge_queue"}


async def test_delete_takes_exchanges_first_and_never_the_default_one() -> None:
    link = FakeLink()
    await a_topology().delete(link)
    assert [question[:2] for question in link.asked] == [
        ("delete_exchange", "orders"),
        ("delete_exchange", "events"),
        ("delete_exchange", "theirs"),
        ("delete_queue", "fulfil"),
        ("delete_queue", "audit"),
        ("delete_queue", "other"),
        ("delete_queue", "unseen"),
    ]


def test_repr_counts() -> None:
    assert repr(a_topology()) == "<Topology /: 3 exchanges, 4 queues, 2 bindings>"
