"""Names on the broker, refused declarations, and queues of the consumers' connection."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from broker_client.config.loader import load_config
from broker_client.connection.topology import Topology
from broker_client.errors import (
    ChannelClosedError,
    ConfigError,
    TopologyError,
    TopologyMismatchError,
)
from tests.support.links import FakeLink
from tests.support.warp import WarpLoop

loop_factory = WarpLoop

MISMATCH = (
    "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'blue:work' in vhost '/': "
    "received the value '2' of type 'signedint' but current is the value '1' of type 'signedint'"
)


def a_topology(**vhost: Any) -> Topology:
    return Topology(load_config({"vhosts": {"/": vhost}}).vhosts["/"])


def refusing(*wanted: tuple[str, str], code: int = 406, text: str = MISMATCH) -> FakeLink:
    link = FakeLink()

    def refuse(operation: str, name: str) -> None:
        if (operation, name) in wanted:
            link.channels[-1].is_usable = False
            raise ChannelClosedError(code, text)

    link.before = refuse
    return link


def test_queue_without_a_name_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match=r"a queue needs a name; .*reply_to: true"):
        a_topology(queues={"": {"options": {"exclusive": True}}})


async def test_everything_is_declared_by_its_name_on_the_broker() -> None:
    link = FakeLink()
    await a_topology(
        namespace="blue",
        exchanges=["orders", "audit"],
        queues={"work": {"purge": True}, "answers": {"reply_to": "me"}},
        bindings={
            "one": {"source": "orders", "destination": "work", "qualify_binding_keys": True},
            "two": {
                "source": "orders",
                "destination": "answers",
                "binding_keys": ["a"],
                "qualify_binding_keys": True,
            },
            "three": {"source": "orders", "destination": "audit", "destination_type": "exchange"},
        },
    ).establish(link, purge=True)
    assert [question[:4] for question in link.asked] == [
        ("declare_exchange", "blue:orders", "topic"),
        ("declare_exchange", "blue:audit", "topic"),
        ("declare_queue", "blue:work"),
        ("declare_queue", "blue:answers:me"),
        ("purge_queue", "blue:work"),
        ("bind_queue", "blue:work", "blue:orders", "#"),
        ("bind_queue", "blue:answers:me", "blue:orders", "blue:a"),
        ("bind_exchange", "blue:audit", "blue:orders", "#"),
    ]


async def test_purge_and_delete_go_by_the_names_on_the_broker() -> None:
    link = FakeLink()
    topology = a_topology(namespace="blue", exchanges=["orders"], queues=["work"])
    await topology.purge(link)
    await topology.delete(link)
    assert [question[1] for question in link.asked] == ["blue:work", "blue:orders", "blue:work"]


async def test_mismatch_names_queue_argument_wanted_and_current() -> None:
    link = refusing(("declare_queue", "blue:work"))
    topology = a_topology(namespace="blue", queues={"work": {"options": {"max_length": 2}}})
    with pytest.raises(TopologyMismatchError) as caught:
        await topology.establish(link, purge=False)
    error = caught.value
    assert (error.entity, error.argument) == ("queue 'blue:work'", "x-max-length")
    assert (error.wanted, error.current) == ("'2'", "'1'")
    assert "x-max-length '1' on the broker but '2' in the configuration" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("arg 'durable' for queue 'q': received 'false' but current is 'true'", "'false' 'true'"),
        (
            "arg 'x-max-length' for queue 'q': received none but current is the value '1' of "
            "type 'signedint'",
            "none '1'",
        ),
        ("arg 'x-queue-mode' for queue 'q': received the value 'lazy' of type 'longstr' but c", ""),
        ("arg 'type' for exchange 'q': received 'direct' but current is 'topic'", "'direct'"),
    ],
)
async def test_mismatch_is_read_in_all_of_rabbitmqs_wordings(text: str, found: str) -> None:
    link = refusing(("declare_queue", "work"), text=f"PRECONDITION_FAILED - inequivalent {text}")
    with pytest.raises(TopologyMismatchError) as caught:
        await a_topology(queues=["work"]).establish(link, purge=False)
    assert f"{caught.value.wanted} {caught.value.current}".startswith(found or "'lazy' another")


async def test_lenient_goes_on_without_what_is_refused_and_returns_it() -> None:
    link = refusing(("declare_queue", "work"))
    topology = a_topology(
        exchanges=["orders"],
        queues=["work", "other"],
        bindings=["orders -> work", "orders -> other"],
    )
    refused = await topology.establish(link, purge=False, lenient=True)
    assert [type(error) for error in refused] == [TopologyMismatchError]
    done = [question[:2] for question in link.asked]
    assert ("declare_queue", "other") in done
    assert ("bind_queue", "other") in done
    assert not any(channel.is_usable for channel in link.channels)


async def test_lenient_goes_on_without_a_missing_queue_that_is_only_checked() -> None:
    link = refusing(("check_queue", "theirs"), code=404, text="NOT_FOUND")
    topology = a_topology(queues={"theirs": {"assert": False, "check": True}, "ours": {}})
    [error] = await topology.establish(link, purge=False, lenient=True)
    assert error.entity == "queue 'theirs'"
    assert ("declare_queue", "theirs") not in [question[:2] for question in link.asked]


async def test_404_for_a_declaration_speaks_for_a_node_that_is_down() -> None:
    link = refusing(("declare_queue", "work"), code=404, text="NOT_FOUND - home node down")
    with pytest.raises(TopologyError, match="home node down"):
        await a_topology(queues=["work"]).establish(link, purge=False, lenient=True)


async def test_exclusive_queues_and_their_bindings_are_the_consumers_own() -> None:
    topology = a_topology(
        exchanges=["orders"],
        queues={"work": {}, "mine": {"options": {"exclusive": True}, "purge": True}},
        bindings=["orders -> work", "orders -> mine"],
    )
    shared, own = FakeLink(), FakeLink()
    await topology.establish(shared, purge=True, part="shared")
    await topology.establish(own, purge=True, part="own")
    assert topology.has_own
    assert [question[:2] for question in shared.asked] == [
        ("declare_exchange", "orders"),
        ("declare_queue", "work"),
        ("bind_queue", "work"),
    ]
    assert [question[:2] for question in own.asked] == [
        ("declare_queue", "mine"),
        ("purge_queue", "mine"),
        ("bind_queue", "mine"),
    ]
