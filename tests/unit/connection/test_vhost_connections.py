"""A vhost with a connection of its own for consumers, and what it tells of itself."""

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


class Desk:
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
async def desk() -> AsyncIterator[Desk]:
    desk = Desk(queues=["work"])
    await desk.vhost.open()
    yield desk
    await desk.close()


# --------------------------------------------------------------------------- two connections


async def test_consumers_connection_is_opened_by_the_first_consumer(desk: Desk) -> None:
    assert desk.consuming[0].links == []
    assert desk.vhost.connections() == [("/", "fake://a/")]
    link = await desk.vhost.wait_up()
    assert link is desk.consuming[0].link
    assert await desk.vhost.wait_up() is link
    assert desk.names()[-1] == "consumers_connected"
    assert [each.role for each in desk.vhost.health().connections] == ["publishing", "consuming"]
    assert desk.consuming[0].link.asked == []


async def test_vhost_without_a_second_connection_has_one_for_both() -> None:
    desk = Desk(separate=False, queues=["work"])
    await desk.vhost.open()
    assert await desk.vhost.wait_up() is desk.main[0].link
    assert [each.role for each in desk.vhost.health().connections] == ["both"]
    await desk.close()


async def test_loss_of_one_connection_leaves_the_other_alone(desk: Desk) -> None:
    consuming = await desk.vhost.wait_up()
    publishing = desk.main[0].link
    desk.events.clear()
    desk.consuming[0].link.lose()
    assert await desk.vhost.wait_up() is not consuming
    assert desk.main[0].link is publishing
    assert desk.names() == ["consumers_disconnected", "error", "consumers_connected"]
    desk.events.clear()
    publishing.lose()
    await desk.vhost.connection.wait_up()
    assert desk.consuming[0].link.is_open
    assert desk.names()[:3] == ["disconnect", "paused", "error"]


async def test_blocked_publishers_leave_the_consumers_link_alone() -> None:
    desk = Desk(queues=["work"])
    await desk.vhost.open()
    link = await desk.vhost.wait_up()
    on_blocked = desk.main[0].link.on_blocked
    assert on_blocked is not None
    on_blocked("low on memory")
    assert desk.vhost.link_state == "up, but blocked by the broker: low on memory"
    channel = await link.open_channel()
    channel.ack(1)
    assert desk.vhost.connection.link is not None
    await desk.close()


async def test_exclusive_queue_is_declared_by_the_consumers_connection_at_the_start() -> None:
    desk = Desk(queues={"work": {}, "mine": {"options": {"exclusive": True}}})
    await desk.vhost.open()
    assert [question[:2] for question in desk.main[0].link.asked] == [("declare_queue", "work")]
    own = [question[:2] for question in desk.consuming[0].link.asked]
    assert own == [("declare_queue", "mine")]
    await desk.close()


async def test_consumers_follow_to_the_broker_that_publishing_moved_to() -> None:
    desk = Desk(2, queues=["work"])
    await desk.vhost.open()
    assert (await desk.vhost.wait_up()).url == "fake://a/"
    desk.main[0].always = ConnectFailedError("fake://a/", "gone")
    desk.main[0].link.lose()
    await desk.vhost.connection.wait_up()
    await settle()
    assert (await desk.vhost.wait_up()).url == "fake://b/"
    await desk.close()


async def test_consumers_wait_until_the_topology_is_there(desk: Desk) -> None:
    await desk.vhost.wait_up()
    desk.main[0].failures = [ConnectFailedError("fake://a/", "refused")] * 2
    desk.main[0].link.lose()
    desk.consuming[0].link.lose()
    await desk.vhost.wait_up()
    assert desk.names().index("consumers_connected", 5) > desk.names().index("connect", 5)
    assert len(desk.consuming[0].attempts) == 2


# --------------------------------------------------------------------------- events


async def test_close_in_order_is_a_close_event_for_who_listens(desk: Desk) -> None:
    error = ConnectionLostError("fake://a/", "320 CONNECTION_FORCED", in_order=True)
    for listened, told in ((set[str](), ["close", "error"]), ({"close"}, ["close"])):
        desk.listened = listened
        desk.events.clear()
        link = desk.main[0].link
        link.is_open, link.how_ended = False, "lost"
        assert link.on_close is not None
        link.on_close(error)
        await desk.vhost.connection.wait_up()
        names = desk.names()
        assert names[:2] == ["disconnect", "paused"]
        assert [name for name in names if name in ("close", "error")] == told


async def test_pools_tell_the_vhost() -> None:
    desk = Desk(publication_channel_pools={"confirm": {"max": 1}})
    await desk.vhost.open()
    pool = desk.vhost.confirm
    async with pool.lease():
        waiting = [asyncio.create_task(pool._acquire()) for _ in range(2)]
        await settle()
    for task in waiting:
        pool._give_back(await task)
    events = [(name, args[0].mode) for name, *args in desk.events if name in ("busy", "ready")]
    assert events == [("busy", "confirm"), ("ready", "confirm")]
    await desk.close()


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
    desk = Desk(queues=["work", "other"])
    desk.main[0].prepared = refusing("work")
    with pytest.raises(TopologyMismatchError, match="queue 'work' has x-max-length '1'"):
        await desk.vhost.open()
    await desk.close()


async def test_mismatch_after_a_reconnect_is_reported_once_and_the_rest_works(
    desk: Desk,
) -> None:
    desk.main[0].prepared = refusing("work")
    desk.main[0].link.lose()
    await desk.vhost.connection.wait_up()
    await asyncio.sleep(60.0)
    mismatches = [each for each in desk.events if isinstance(each[1], TopologyMismatchError)]
    assert len(mismatches) == 1
    assert len(desk.main[0].links) == 2
    assert [problem for problem in desk.vhost.health().problems if "'work'" in problem]
    assert desk.vhost.health().ready
    declared = desk.main[0].link.channels
    assert len(declared) < 30, "it spins"


async def test_mended_queue_is_declared_without_a_new_connection(desk: Desk) -> None:
    desk.main[0].prepared = refusing("work")
    desk.main[0].link.lose()
    link = await desk.vhost.connection.wait_up()
    assert isinstance(link, FakeLink)
    link.before = None
    await asyncio.sleep(30.0)
    assert ("declare_queue", "work") in link.asked
    assert desk.vhost.health().problems == ()


async def test_patient_start_goes_on_without_what_is_refused() -> None:
    desk = Desk(queues=["work", "other"], startup="retry", startup_timeout="20s")
    desk.main[0].prepared = refusing("work")
    await desk.vhost.open()
    assert ("declare_queue", "other") in [each[:2] for each in desk.main[0].link.asked]
    assert "error" in desk.names()
    await desk.close()


async def test_restore_that_is_refused_in_part_makes_the_rest(desk: Desk) -> None:
    refusing("first")(desk.main[0].link)
    desk.vhost._declarations.topology._queues.insert(
        0, desk.vhost.config.queues["work"].model_copy(update={"name": "first"})
    )
    with pytest.raises(TopologyError, match="'first'"):
        await desk.vhost.restore_topology()
    assert desk.main[0].link.asked[-1] == ("declare_queue", "work")


# --------------------------------------------------------------------------- life


async def test_patient_start_ends_at_its_time_limit() -> None:
    desk = Desk(startup="retry", startup_timeout="20s")
    desk.main[0].always = ConnectFailedError("fake://a/", "refused")
    began = asyncio.get_running_loop().time()
    with pytest.raises(ConnectFailedError, match="refused"):
        await desk.vhost.open()
    assert asyncio.get_running_loop().time() - began == pytest.approx(20.0)
    assert desk.events == []
    await desk.close()


async def test_bounce_while_the_broker_is_away_ends_in_time_and_says_why(desk: Desk) -> None:
    desk.main[0].always = ConnectFailedError("fake://a/", "refused")
    desk.vhost.cut("bounced")
    with pytest.raises(ConnectFailedError, match=r"not back within 5 s.*last error.*refused"):
        await desk.vhost.wait_all_up(asyncio.get_running_loop().time() + 5.0, 5.0)
    desk.main[0].always = None
    await desk.vhost.connection.wait_up()


async def test_bounce_replaces_both_connections(desk: Desk) -> None:
    await desk.vhost.wait_up()
    desk.vhost.cut("bounced")
    await desk.vhost.wait_all_up(asyncio.get_running_loop().time() + 5.0, 5.0)
    assert [len(each.links) for each in (desk.main[0], desk.consuming[0])] == [2, 2]


async def test_nuke_closes_first_so_that_nothing_is_declared_anew(desk: Desk) -> None:
    await desk.vhost.nuke()
    assert desk.main[0].links[0].how_ended == "closed"
    assert ("delete_queue", "work") in desk.main[0].links[1].asked
    assert desk.vhost.connection.state == "closed"


async def test_health_tells_of_each_connection(desk: Desk) -> None:
    await desk.vhost.wait_up()
    health = desk.vhost.health()
    assert health.live
    assert health.ready
    assert [each.role for each in health.connections] == ["publishing", "consuming"]
    desk.main[0].always = ConnectFailedError("fake://a/", "refused")
    desk.main[0].link.lose()
    await asyncio.sleep(3.0)
    publishing, consuming = desk.vhost.health().connections
    assert publishing.state == "down"
    assert publishing.down_for == pytest.approx(3.0)
    assert "refused" in publishing.last_error
    assert consuming.is_ready
    assert not desk.vhost.health().ready
    assert desk.vhost.health().live


async def test_health_of_a_blocked_connection_is_not_ready(desk: Desk) -> None:
    on_blocked = desk.main[0].link.on_blocked
    assert on_blocked is not None
    on_blocked("low on memory")
    [publishing] = desk.vhost.health().connections
    assert publishing.blocked == "low on memory"
    assert not desk.vhost.health().ready


async def test_health_is_not_live_once_every_login_was_refused_for_a_minute(desk: Desk) -> None:
    refused = AuthenticationRefusedError("fake://a/", "403 ACCESS_REFUSED")
    desk.main[0].always = refused
    desk.main[0].link.lose()
    await asyncio.sleep(50.0)
    assert desk.vhost.health().live
    await asyncio.sleep(20.0)
    assert not desk.vhost.health().live
    desk.main[0].always = None
    await desk.vhost.connection.wait_up()
    assert desk.vhost.health().live


async def test_loss_is_one_warning_and_failed_attempts_are_info(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    desk.main[0].failures = [ConnectFailedError("fake://a/", "refused")] * 3
    desk.main[0].link.lose()
    await desk.vhost.connection.wait_up()
    levels = [each.levelname for each in caplog.records if "connected to" not in each.message]
    assert levels == ["WARNING", "INFO", "INFO", "INFO"]
