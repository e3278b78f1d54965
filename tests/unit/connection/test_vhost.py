import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client.config.loader import load_config
from broker_client.connection.connectors import Connectors
from broker_client.connection.vhost import Vhost
from broker_client.errors import (
    ChannelClosedError,
    ConnectFailedError,
    PublishTimeoutError,
    TopologyError,
)
from broker_client.message import Outgoing, Properties
from broker_client.publication import Origin, Publication
from broker_client.publishing.vhost_publisher import VhostPublisher
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup
from tests.support.links import FakeConnector, FakeLink
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class VhostHarness:
    def __init__(self) -> None:
        config = load_config(
            {
                "vhosts": {
                    "/": {
                        "connection": {
                            "url": "amqp://guest:secret@h",
                            "retry": {"min": "1s", "max": "8s"},
                        },
                        "queues": {"fulfil": {"purge": True}},
                    }
                }
            }
        )
        self.connector = FakeConnector(auto_confirm=True)
        self.events: list[tuple[Any, ...]] = []
        self.tasks = TaskGroup("test")
        self.vhost = Vhost(
            config.vhosts["/"],
            Connectors([self.connector]),
            lambda *args: self.events.append(args),
            self.tasks,
        )
        self.publisher = VhostPublisher(self.vhost, Emitter(self.tasks), self.tasks)

    @property
    def link(self) -> FakeLink:
        return self.connector.link

    def names(self) -> list[str]:
        return [event[0] for event in self.events]

    async def publish(self, message_id: str, timeout: float = 10.0) -> Publication:
        publication = Publication(
            Origin("orders", self.publisher.queue.withdraw, self.tasks),
            Outgoing("", "fulfil", b"x", Properties(message_id=message_id)),
            asyncio.get_running_loop().time(),
            timeout,
        )
        await self.publisher.queue.put(publication, confirm=True)
        return publication


@pytest.fixture
async def harness() -> AsyncIterator[VhostHarness]:
    harness = VhostHarness()
    yield harness
    await harness.publisher.close()
    await harness.vhost.close()
    await harness.tasks.cancel()


async def test_open_connects_declares_and_says_so_in_order(harness: VhostHarness) -> None:
    await harness.vhost.open()
    assert harness.events == [
        ("connect", "/", "fake://a/"),
        ("resumed", "/"),
        ("vhost_initialised", "/"),
    ]
    assert ("declare_queue", "fulfil") in harness.link.asked
    assert repr(harness.vhost) == "<Vhost /: up>"


async def test_queues_are_purged_at_the_start_and_never_again(harness: VhostHarness) -> None:
    await harness.vhost.open()
    harness.link.lose()
    await harness.vhost.wait_up()
    purged = [("purge_queue", "fulfil") in link.asked for link in harness.connector.links]
    assert purged == [True, False]


async def test_failed_start_emits_no_error_and_raises(harness: VhostHarness) -> None:
    harness.connector.always = ConnectFailedError("fake://a/", "refused")
    with pytest.raises(ConnectFailedError):
        await harness.vhost.open()
    assert harness.events == []


async def test_loss_pauses_and_return_resumes_in_order(harness: VhostHarness) -> None:
    await harness.vhost.open()
    harness.events.clear()
    harness.connector.failures = [ConnectFailedError("fake://a/", "refused")]
    harness.link.lose()
    await settle()
    assert harness.names() == ["disconnect", "paused", "error", "error"]
    first, second = await harness.publish("m1"), await harness.publish("m2")
    await harness.vhost.wait_up()
    await first
    await second
    assert harness.names()[4:] == ["connect", "resumed", "vhost_initialised"]
    assert harness.link.confirming()[0].ids == ["m1", "m2"]
    assert harness.vhost.connection.epoch == 2


async def test_nothing_is_published_before_the_topology_is_there(harness: VhostHarness) -> None:
    await harness.vhost.open()
    harness.link.lose()
    publication = await harness.publish("m1")
    await publication
    asked_at = [channel for channel in harness.link.channels if channel.asked]
    published_at = [channel for channel in harness.link.channels if channel.published]
    assert harness.link.channels.index(asked_at[0]) < harness.link.channels.index(published_at[0])
    assert asked_at[0].how_ended == "closed"


async def test_publish_that_times_out_while_down_says_how_long_and_why(
    harness: VhostHarness,
) -> None:
    await harness.vhost.open()
    harness.connector.always = ConnectFailedError("fake://a/", "refused")
    harness.link.lose()
    publication = await harness.publish("m1", timeout=3.0)
    with pytest.raises(
        PublishTimeoutError, match=r"link down for 3\.0 s, last error: failed to connect.*refused"
    ):
        await publication


async def test_blocked_pauses_and_unblocked_resumes(harness: VhostHarness) -> None:
    await harness.vhost.open()
    assert harness.link.on_blocked is not None
    assert harness.link.on_unblocked is not None
    harness.link.on_blocked("low on memory")
    publication = await harness.publish("m1")
    await settle()
    assert harness.link.confirming() == []
    assert harness.vhost.link_state == "up, but blocked by the broker: low on memory"
    harness.link.on_unblocked()
    await publication
    assert [event for event in harness.events if "blocked" in event[0]] == [
        ("blocked", "low on memory", "/"),
        ("unblocked", "/"),
    ]


async def test_link_lost_while_blocked_comes_back_unblocked(harness: VhostHarness) -> None:
    await harness.vhost.open()
    assert harness.link.on_blocked is not None
    harness.link.on_blocked("low on memory")
    publication = await harness.publish("m1")
    harness.link.lose()
    await publication
    assert harness.vhost.link_state == "up"


async def test_several_who_want_the_topology_restored_share_one_run(harness: VhostHarness) -> None:
    await harness.vhost.open()
    before = harness.link.asked.count(("declare_queue", "fulfil"))
    await asyncio.gather(*(harness.vhost.restore_topology() for _ in range(5)))
    assert harness.link.asked.count(("declare_queue", "fulfil")) == before + 1
    await asyncio.sleep(0.25)
    started = asyncio.get_running_loop().time()
    await harness.vhost.restore_topology()
    assert asyncio.get_running_loop().time() - started == pytest.approx(0.75)


async def test_restore_that_fails_is_told_to_each(harness: VhostHarness) -> None:
    await harness.vhost.open()
    link = harness.link

    def refuse(operation: str, name: str) -> None:
        if operation == "declare_queue":
            raise ChannelClosedError(405, "RESOURCE_LOCKED")

    link.before = refuse
    results = await asyncio.gather(
        *(harness.vhost.restore_topology() for _ in range(2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [TopologyError, TopologyError]


async def test_purge_and_delete_use_a_link_of_their_own_and_close_it(harness: VhostHarness) -> None:
    await harness.vhost.open()
    assert await harness.vhost.purge() == 3
    await harness.vhost.delete()
    assert [link.how_ended for link in harness.connector.links] == ["", "closed", "closed"]


async def test_close_while_down_does_not_wait_for_the_link(harness: VhostHarness) -> None:
    await harness.vhost.open()
    harness.connector.always = ConnectFailedError("fake://a/", "refused")
    harness.link.lose()
    await asyncio.sleep(20.0)
    before = asyncio.get_running_loop().time()
    await harness.vhost.close()
    assert asyncio.get_running_loop().time() == before
