"""A vhost with a separate connection for consumers, its statistics and health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client.config.loader import load_config
from broker_client.connection.connectors import Connectors
from broker_client.connection.vhost import Vhost
from broker_client.errors import (
    AuthenticationRefusedError,
    ChannelClosedError,
    ConnectFailedError,
    ConnectionLostError,
    TopologyError,
    TopologyMismatchError,
)
from broker_client.runtime.tasks import TaskGroup
from tests.support.links import FakeConnector, FakeLink
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop

WRONG = (
    "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'work' in vhost '/': "
    "received the value '2' of type 'signedint' but current is the value '1' of type 'signedint'"
)


class VhostHarness:
    def __init__(self, addresses: int = 1, *, separate: bool = True, **vhost: Any) -> None:
        urls = [f"fake://{'abc'[at]}/" for at in range(addresses)]
        retry = {"min": "1s", "max": "8s"}
        config = load_config(
            {
                "vhosts": {
                    "/": {
                        "connections": [
                            {"url": f"amqp://guest:secret@h{at}", "retry": retry}
                            for at in range(addresses)
                        ],
                        "connection_strategy": "fixed",
                        **vhost,
                    }
                }
            }
        ).vhosts["/"]
        self.main = [FakeConnector(url, auto_confirm=True) for url in urls]
        self.consuming = [FakeConnector(url) for url in urls] if separate else []
        self.events: list[tuple[Any, ...]] = []
        self.listened: set[str] = set()
        self.tasks = TaskGroup("test")
        self.vhost = Vhost(config, Connectors(self.main, self.consuming), self._emit, self.tasks)

    def _emit(self, event: str, *args: Any) -> bool:
        self.events.append((event, *args))
        return event in self.listened

    def names(self) -> list[str]:
        return [event[0] for event in self.events]

    async def close(self) -> None:
        await self.vhost.close()
        await self.tasks.cancel()


@pytest.fixture
async def harness() -> AsyncIterator[VhostHarness]:
    harness = VhostHarness(queues=["work"])
    await harness.vhost.open()
    yield harness
    await harness.close()


# --------------------------------------------------------------------------- two connections


async def test_consumers_connection_is_opened_by_the_first_consumer(harness: VhostHarness) -> None:
    assert harness.consuming[0].links == []
    assert harness.vhost.connections() == [("/", "fake://a/")]
    link = await harness.vhost.wait_up()
    assert link is harness.consuming[0].link
    assert await harness.vhost.wait_up() is link
    assert harness.names()[-1] == "consumers_connected"
    assert [each.role for each in harness.vhost.health().connections] == ["publishing", "consuming"]
    assert harness.consuming[0].link.asked == []


async def test_vhost_without_a_second_connection_has_one_for_both() -> None:
    harness = VhostHarness(separate=False, queues=["work"])
    await harness.vhost.open()
    assert await harness.vhost.wait_up() is harness.main[0].link
    assert [each.role for each in harness.vhost.health().connections] == ["both"]
    await harness.close()


async def test_loss_of_one_connection_leaves_the_other_alone(harness: VhostHarness) -> None:
    consuming = await harness.vhost.wait_up()
    publishing = harness.main[0].link
    harness.events.clear()
    harness.consuming[0].link.lose()
    assert await harness.vhost.wait_up() is not consuming
    assert harness.main[0].link is publishing
    assert harness.names() == ["consumers_disconnected", "error", "consumers_connected"]
    harness.events.clear()
    publishing.lose()
    await harness.vhost.connection.wait_up()
    assert harness.consuming[0].link.is_open
    assert harness.names()[:3] == ["disconnect", "paused", "error"]


async def test_blocked_publishers_leave_the_consumers_link_alone() -> None:
    harness = VhostHarness(queues=["work"])
    await harness.vhost.open()
    link = await harness.vhost.wait_up()
    on_blocked = harness.main[0].link.on_blocked
    assert on_blocked is not None
    on_blocked("low on memory")
    assert harness.vhost.link_state == "up, but blocked by the broker: low on memory"
    channel = await link.open_channel()
    channel.ack(1)
    assert harness.vhost.connection.link is not None
    await harness.close()


async def test_exclusive_queue_is_declared_by_the_consumers_connection_at_the_start() -> None:
    harness = VhostHarness(queues={"work": {}, "mine": {"options": {"exclusive": True}}})
    await harness.vhost.open()
    assert [question[:2] for question in harness.main[0].link.asked] == [("declare_queue", "work")]
    own = [question[:2] for question in harness.consuming[0].link.asked]
    assert own == [("declare_queue", "mine")]
    await harness.close()


async def test_consumers_follow_to_the_broker_that_publishing_moved_to() -> None:
    harness = VhostHarness(2, queues=["work"])
    await harness.vhost.open()
    assert (await harness.vhost.wait_up()).url == "fake://a/"
    harness.main[0].always = ConnectFailedError("fake://a/", "gone")
    harness.main[0].link.lose()
    await harness.vhost.connection.wait_up()
    await settle()
    assert (await harness.vhost.wait_up()).url == "fake://b/"
    await harness.close()


async def test_consumers_wait_until_the_topology_is_there(harness: VhostHarness) -> None:
    await harness.vhost.wait_up()
    harness.main[0].failures = [ConnectFailedError("fake://a/", "refused")] * 2
    harness.main[0].link.lose()
    harness.consuming[0].link.lose()
    await harness.vhost.wait_up()
    assert harness.names().index("consumers_connected", 5) > harness.names().index("connect", 5)
    assert len(harness.consuming[0].attempts) == 2


# --------------------------------------------------------------------------- events


async def test_close_in_order_is_a_close_event_for_who_listens(harness: VhostHarness) -> None:
    error = ConnectionLostError("fake://a/", "320 CONNECTION_FORCED", in_order=True)
    for listened, told in ((set[str](), ["close", "error"]), ({"close"}, ["close"])):
        harness.listened = listened
        harness.events.clear()
        link = harness.main[0].link
        link.is_open, link.how_ended = False, "lost"
        assert link.on_close is not None
        link.on_close(error)
        await harness.vhost.connection.wait_up()
        names = harness.names()
        assert names[:2] == ["disconnect", "paused"]
        assert [name for name in names if name in ("close", "error")] == told


async def test_pools_tell_the_vhost() -> None:
    harness = VhostHarness(publication_channel_pools={"confirm": {"max": 1}})
    await harness.vhost.open()
    pool = harness.vhost.confirm
    async with pool.lease():
        waiting = [asyncio.create_task(pool._acquire()) for _ in range(2)]
        await settle()
    for task in waiting:
        pool._give_back(await task)
    events = [(name, args[0].mode) for name, *args in harness.events if name in ("busy", "ready")]
    assert events == [("busy", "confirm"), ("ready", "confirm")]
    await harness.close()


# --------------------------------------------------------------------------- refusals


def refusing(queue: str) -> Any:
    def prepared(link: FakeLink) -> None:
        def refuse(operation: str, name: str) -> None:
            if (operation, name) == ("declare_queue", queue):
                link.channels[-1].is_usable = False
                raise ChannelClosedError(406, WRONG)

        link.before = refuse

    return prepared


async def test_mismatch_at_the_start_fails_it() -> None:
    harness = VhostHarness(queues=["work", "other"])
    harness.main[0].prepared = refusing("work")
    with pytest.raises(TopologyMismatchError, match="queue 'work' has x-max-length '1'"):
        await harness.vhost.open()
    await harness.close()


async def test_mismatch_after_a_reconnect_is_reported_once_and_the_rest_works(
    harness: VhostHarness,
) -> None:
    harness.main[0].prepared = refusing("work")
    harness.main[0].link.lose()
    await harness.vhost.connection.wait_up()
    await asyncio.sleep(60.0)
    mismatches = [each for each in harness.events if isinstance(each[1], TopologyMismatchError)]
    assert len(mismatches) == 1
    assert len(harness.main[0].links) == 2
    assert [problem for problem in harness.vhost.health().problems if "'work'" in problem]
    assert harness.vhost.health().ready
    declared = harness.main[0].link.channels
    assert len(declared) < 30, "it spins"


async def test_mended_queue_is_declared_without_a_new_connection(harness: VhostHarness) -> None:
    harness.main[0].prepared = refusing("work")
    harness.main[0].link.lose()
    link = await harness.vhost.connection.wait_up()
    assert isinstance(link, FakeLink)
    link.before = None
    await asyncio.sleep(30.0)
    assert ("declare_queue", "work") in link.asked
    assert harness.vhost.health().problems == ()


async def test_patient_start_goes_on_without_what_is_refused() -> None:
    harness = VhostHarness(queues=["work", "other"], startup="retry", startup_timeout="20s")
    harness.main[0].prepared = refusing("work")
    await harness.vhost.open()
    assert ("declare_queue", "other") in [each[:2] for each in harness.main[0].link.asked]
    assert "error" in harness.names()
    await harness.close()


async def test_restore_that_is_refused_in_part_makes_the_rest(harness: VhostHarness) -> None:
    refusing("first")(harness.main[0].link)
    harness.vhost._declarations.topology._queues.insert(
        0, harness.vhost.config.queues["work"].model_copy(update={"name": "first"})
    )
    with pytest.raises(TopologyError, match="'first'"):
        await harness.vhost.restore_topology()
    assert harness.main[0].link.asked[-1] == ("declare_queue", "work")


# --------------------------------------------------------------------------- life


async def test_patient_start_ends_at_its_time_limit() -> None:
    harness = VhostHarness(startup="retry", startup_timeout="20s")
    harness.main[0].always = ConnectFailedError("fake://a/", "refused")
    began = asyncio.get_running_loop().time()
    with pytest.raises(ConnectFailedError, match="refused"):
        await harness.vhost.open()
    assert asyncio.get_running_loop().time() - began == pytest.approx(20.0)
    assert harness.events == []
    await harness.close()


async def test_bounce_while_the_broker_is_away_ends_in_time_and_says_why(
    harness: VhostHarness,
) -> None:
    harness.main[0].always = ConnectFailedError("fake://a/", "refused")
    harness.vhost.cut("bounced")
    with pytest.raises(ConnectFailedError, match=r"not back within 5 s.*last error.*refused"):
        await harness.vhost.wait_all_up(asyncio.get_running_loop().time() + 5.0, 5.0)
    harness.main[0].always = None
    await harness.vhost.connection.wait_up()


async def test_bounce_replaces_both_connections(harness: VhostHarness) -> None:
    await harness.vhost.wait_up()
    harness.vhost.cut("bounced")
    await harness.vhost.wait_all_up(asyncio.get_running_loop().time() + 5.0, 5.0)
    assert [len(each.links) for each in (harness.main[0], harness.consuming[0])] == [2, 2]


async def test_nuke_closes_first_so_that_nothing_is_declared_anew(harness: VhostHarness) -> None:
    await harness.vhost.nuke()
    assert harness.main[0].links[0].how_ended == "closed"
    assert ("delete_queue", "work") in harness.main[0].links[1].asked
    assert harness.vhost.connection.state == "closed"


async def test_health_tells_of_each_connection(harness: VhostHarness) -> None:
    await harness.vhost.wait_up()
    health = harness.vhost.health()
    assert health.live
    assert health.ready
    assert [each.role for each in health.connections] == ["publishing", "consuming"]
    harness.main[0].always = ConnectFailedError("fake://a/", "refused")
    harness.main[0].link.lose()
    await asyncio.sleep(3.0)
    publishing, consuming = harness.vhost.health().connections
    assert publishing.state == "down"
    assert publishing.down_for == pytest.approx(3.0)
    assert "refused" in publishing.last_error
    assert consuming.is_ready
    assert not harness.vhost.health().ready
    assert harness.vhost.health().live


async def test_health_of_a_blocked_connection_is_not_ready(harness: VhostHarness) -> None:
    on_blocked = harness.main[0].link.on_blocked
    assert on_blocked is not None
    on_blocked("low on memory")
    [publishing] = harness.vhost.health().connections
    assert publishing.blocked == "low on memory"
    assert not harness.vhost.health().ready


async def test_health_is_not_live_once_every_login_was_refused_for_a_minute(
    harness: VhostHarness,
) -> None:
    refused = AuthenticationRefusedError("fake://a/", "403 ACCESS_REFUSED")
    harness.main[0].always = refused
    harness.main[0].link.lose()
    await asyncio.sleep(50.0)
    assert harness.vhost.health().live
    await asyncio.sleep(20.0)
    assert not harness.vhost.health().live
    harness.main[0].always = None
    await harness.vhost.connection.wait_up()
    assert harness.vhost.health().live


async def test_loss_is_one_warning_and_failed_attempts_are_info(
    harness: VhostHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="broker_client.connection")
    harness.main[0].failures = [ConnectFailedError("fake://a/", "refused")] * 3
    harness.main[0].link.lose()
    await harness.vhost.connection.wait_up()
    levels = [each.levelname for each in caplog.records if "connected to" not in each.message]
    assert levels == ["WARNING", "INFO", "INFO", "INFO"]
