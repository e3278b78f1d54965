import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from broker_client.config import RetryConfig
from broker_client.connection.addresses import Addresses
from broker_client.connection.connection import Connection
from broker_client.errors import (
    BrokerClosedError,
    ConnectFailedError,
    OperationTimeoutError,
    TopologyError,
    TransportError,
)
from broker_client.transport.base import Link
from tests.support.links import FakeConnector, FakeLink
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class Owner:
    """Hears everything, and prepares as the test says."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.failures: list[Exception] = []
        self.preparing: Callable[[Link], Any] | None = None

    async def prepare(self, link: Link) -> None:
        self.heard.append("prepare")
        if self.preparing is not None:
            await self.preparing(link)
        if self.failures:
            raise self.failures.pop(0)

    def link_up(self, link: Link) -> None:
        self.heard.append("up")

    def link_down(self, link: Link, error: TransportError) -> None:
        self.heard.append(f"down: {error}")

    def attempt_failed(self, error: Exception) -> None:
        self.heard.append(f"failed: {error}")

    def blocked(self, link: Link, reason: str) -> None:
        self.heard.append(f"blocked: {reason}")

    def unblocked(self, link: Link) -> None:
        self.heard.append("unblocked")


REFUSED = ConnectFailedError("fake://a/", "refused")


class Desk:
    def __init__(self, *urls: str, **retry: Any) -> None:
        self.owner = Owner()
        self.connectors = [FakeConnector(url) for url in urls or ("fake://a/",)]
        settings = {"min": 1.0, "max": 8.0, "factor": 2.0, "stable_after": 30.0, **retry}
        self.connection = Connection(
            "/",
            Addresses(
                self.connectors, retry=RetryConfig.model_validate(settings), connect_timeout=5.0
            ),
            self.owner,
            prepare_timeout=5.0,
        )

    @property
    def first(self) -> FakeConnector:
        return self.connectors[0]

    @property
    def link(self) -> FakeLink:
        return self.first.link


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    await desk.connection.close()


# --------------------------------------------------------------------------- opening


async def test_open_prepares_before_anybody_sees_the_link(desk: Desk) -> None:
    async def preparing(link: Link) -> None:
        assert desk.connection.link is None

    desk.owner.preparing = preparing
    await desk.connection.open()
    assert desk.connection.link is desk.link
    assert desk.owner.heard == ["prepare", "up"]
    assert repr(desk.connection) == "<Connection /: up, epoch 1>"


async def test_open_tries_each_address_once_and_raises_the_last_failure() -> None:
    desk = Desk("fake://a/", "fake://b/")
    for connector in desk.connectors:
        connector.always = ConnectFailedError(connector.url, "refused")
    with pytest.raises(ConnectFailedError, match="fake://b/"):
        await desk.connection.open()
    assert [len(connector.attempts) for connector in desk.connectors] == [1, 1]
    await desk.connection.close()


async def test_open_whose_preparation_fails_drops_the_link_and_raises(desk: Desk) -> None:
    desk.owner.failures = [TopologyError("/", "queue 'q'", "406")]
    with pytest.raises(TopologyError):
        await desk.connection.open()
    assert desk.link.how_ended == "aborted"


async def test_preparation_that_takes_too_long_is_a_time_out(desk: Desk) -> None:
    async def hang(link: Link) -> None:
        await asyncio.Event().wait()

    desk.owner.preparing = hang
    with pytest.raises(OperationTimeoutError, match="setting up the topology on fake://a/"):
        await desk.connection.open()
    assert desk.link.how_ended == "aborted"


async def test_link_that_dies_while_it_is_prepared_is_not_used(desk: Desk) -> None:
    async def die(link: Link) -> None:
        assert isinstance(link, FakeLink)
        link.lose("cut while it was prepared")

    desk.owner.preparing = die
    with pytest.raises(TransportError, match="cut while it was prepared"):
        await desk.connection.open()
    assert "up" not in desk.owner.heard


async def test_close_while_opening_leaves_nothing_open(desk: Desk) -> None:
    desk.first.gate = asyncio.Event()
    opening = asyncio.create_task(desk.connection.open())
    await settle()
    await desk.connection.close()
    desk.first.gate.set()
    with pytest.raises(BrokerClosedError):
        await opening
    assert desk.link.how_ended == "aborted"
    assert "up" not in desk.owner.heard


async def test_open_that_is_cancelled_while_preparing_drops_the_link(desk: Desk) -> None:
    async def hang(link: Link) -> None:
        await asyncio.Event().wait()

    desk.owner.preparing = hang
    opening = asyncio.create_task(desk.connection.open())
    await settle()
    opening.cancel()
    await settle()
    assert opening.cancelled()
    assert desk.link.how_ended == "aborted"


# --------------------------------------------------------------------------- reconnecting


async def test_lost_link_is_replaced_at_once_the_first_time(desk: Desk) -> None:
    await desk.connection.open()
    before = asyncio.get_running_loop().time()
    desk.link.lose()
    link = await desk.connection.wait_up()
    assert link is desk.first.links[1]
    assert asyncio.get_running_loop().time() == before
    assert desk.owner.heard[2:] == [
        "down: connection to fake://a/ lost: cut",
        "prepare",
        "up",
    ]
    assert desk.connection.epoch == 2


async def test_waits_grow_while_nobody_answers(desk: Desk) -> None:
    await desk.connection.open()
    desk.first.failures = [REFUSED] * 5
    desk.link.lose()
    await desk.connection.wait_up()
    times = desk.first.attempts[1:]
    waits = [later - earlier for earlier, later in pairwise(times)]
    for wait, (least, most) in zip(waits, ((1, 2), (2, 3), (4, 5), (8, 8), (8, 8)), strict=True):
        assert least - 0.001 <= wait <= most + 0.001
    assert desk.owner.heard.count("failed: failed to connect to fake://a/: refused") == 5


async def test_link_that_dies_soon_after_it_came_up_makes_the_waits_grow(desk: Desk) -> None:
    await desk.connection.open()
    ups = []
    for _ in range(4):
        lost = asyncio.get_running_loop().time()
        desk.first.link.lose()
        await desk.connection.wait_up()
        ups.append(asyncio.get_running_loop().time() - lost)
    assert ups[0] == 0
    assert 1 <= ups[1] <= 2 <= ups[2] <= 3
    assert 4 <= ups[3] <= 5


async def test_link_that_stayed_up_long_enough_resets_the_waits(desk: Desk) -> None:
    await desk.connection.open()
    for _ in range(3):
        desk.first.link.lose()
        await desk.connection.wait_up()
    await asyncio.sleep(31.0)
    lost = asyncio.get_running_loop().time()
    desk.first.link.lose()
    await desk.connection.wait_up()
    assert asyncio.get_running_loop().time() == lost
    desk.first.link.lose()
    await desk.connection.wait_up()
    assert 1 <= asyncio.get_running_loop().time() - lost <= 2


async def test_failed_preparation_counts_as_a_failed_address(desk: Desk) -> None:
    await desk.connection.open()
    desk.owner.failures = [TopologyError("/", "queue 'q'", "405 locked")] * 2
    desk.link.lose()
    await desk.connection.wait_up()
    assert [link.how_ended for link in desk.first.links] == ["lost", "aborted", "aborted", ""]
    assert desk.owner.heard.count("failed: vhost '/': queue 'q': 405 locked") == 2


async def test_lost_address_is_tried_after_all_others() -> None:
    desk = Desk("fake://a/", "fake://b/", "fake://c/")
    a, b, c = desk.connectors
    await desk.connection.open()
    a.always = ConnectFailedError("fake://a/", "gone")
    a.link.lose()
    assert (await desk.connection.wait_up()).url == "fake://b/"
    assert desk.connection.url == "fake://b/"
    b.always = ConnectFailedError("fake://b/", "gone")
    b.link.lose()
    assert (await desk.connection.wait_up()).url == "fake://c/"
    a.always = None
    c.always = ConnectFailedError("fake://c/", "gone")
    c.link.lose()
    assert (await desk.connection.wait_up()).url == "fake://a/"
    assert [len(each.attempts) for each in (a, b, c)] == [2, 1, 1]
    await desk.connection.close()


async def test_retry_turned_off_means_no_new_attempt() -> None:
    desk = Desk(enabled=False)
    await desk.connection.open()
    desk.link.lose()
    waiting = asyncio.create_task(desk.connection.wait_up())
    await asyncio.sleep(60.0)
    assert len(desk.first.attempts) == 1
    assert desk.connection.state == "closed"
    with pytest.raises(BrokerClosedError) as caught:
        await waiting
    assert "cut" in str(caught.value.__cause__)
    await desk.connection.close()


async def test_failure_that_is_not_worth_a_retry_gives_up_and_says_so(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.connection.open()
    desk.first.failures = [KeyError("a bug")]
    desk.link.lose()
    await asyncio.sleep(60.0)
    assert desk.connection.state == "closed"
    assert "given up" in caplog.text
    with pytest.raises(BrokerClosedError):
        await desk.connection.wait_up()


# --------------------------------------------------------------------------- waiting, closing


async def test_waiting_for_a_dead_link_that_is_not_reported_yet_does_not_spin(desk: Desk) -> None:
    await desk.connection.open()
    desk.link.die_silently()
    waiting = asyncio.create_task(desk.connection.wait_up())
    await settle()
    assert not waiting.done()  # and `settle` came back: nobody keeps the loop busy
    desk.link.lose()
    assert await waiting is desk.first.links[1]


async def test_waiting_before_open_is_refused(desk: Desk) -> None:
    with pytest.raises(BrokerClosedError):
        await desk.connection.wait_up()


async def test_close_while_reconnecting_ends_the_attempt_and_wakes_who_waits(desk: Desk) -> None:
    await desk.connection.open()
    desk.first.gate = asyncio.Event()
    desk.link.lose()
    waiting = asyncio.create_task(desk.connection.wait_up())
    await settle()
    assert len(desk.first.attempts) == 2
    await desk.connection.close()
    with pytest.raises(BrokerClosedError):
        await waiting
    desk.first.gate.set()
    await settle()
    assert len(desk.first.links) == 1
    assert desk.connection.state == "closed"


async def test_close_while_waiting_to_try_again_is_immediate(desk: Desk) -> None:
    await desk.connection.open()
    desk.first.always = REFUSED
    desk.link.lose()
    await asyncio.sleep(30.0)
    before = asyncio.get_running_loop().time()
    await desk.connection.close()
    assert asyncio.get_running_loop().time() == before
    attempts = len(desk.first.attempts)
    await asyncio.sleep(60.0)
    assert len(desk.first.attempts) == attempts


async def test_close_closes_the_link_in_order_and_twice_is_harmless(desk: Desk) -> None:
    await desk.connection.open()
    await desk.connection.close()
    await desk.connection.close()
    assert desk.link.how_ended == "closed"
    assert not any(each.startswith("down") for each in desk.owner.heard)


async def test_abort_gets_a_new_link(desk: Desk) -> None:
    await desk.connection.open()
    desk.connection.abort("bounced")
    link = await desk.connection.wait_up()
    assert link is desk.first.links[1]
    assert desk.first.links[0].how_ended == "aborted"
    assert "down: connection to fake://a/ lost: bounced" in desk.owner.heard


async def test_loss_of_an_old_link_is_not_taken_for_the_present_one(desk: Desk) -> None:
    await desk.connection.open()
    old = desk.link
    old.lose()
    await desk.connection.wait_up()
    old.lose("again")
    await settle()
    assert desk.connection.state == "up"
    assert len(desk.first.links) == 2


async def test_blocked_and_unblocked_are_passed_on(desk: Desk) -> None:
    await desk.connection.open()
    assert desk.link.on_blocked is not None
    assert desk.link.on_unblocked is not None
    desk.link.on_blocked("low on memory")
    desk.link.on_unblocked()
    assert desk.owner.heard[-2:] == ["blocked: low on memory", "unblocked"]
