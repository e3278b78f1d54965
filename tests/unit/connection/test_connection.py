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
    """An owner that records events, and prepares links as the test says."""

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


class ConnectionHarness:
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
async def harness() -> AsyncIterator[ConnectionHarness]:
    harness = ConnectionHarness()
    yield harness
    await harness.connection.close()


# --------------------------------------------------------------------------- opening


async def test_open_prepares_before_anybody_sees_the_link(harness: ConnectionHarness) -> None:
    async def preparing(link: Link) -> None:
        assert harness.connection.link is None

    harness.owner.preparing = preparing
    await harness.connection.open()
    assert harness.connection.link is harness.link
    assert harness.owner.heard == ["prepare", "up"]
    assert repr(harness.connection) == "<Connection /: up, epoch 1>"


async def test_open_tries_each_address_once_and_raises_the_last_failure() -> None:
    harness = ConnectionHarness("fake://a/", "fake://b/")
    for connector in harness.connectors:
        connector.always = ConnectFailedError(connector.url, "refused")
    with pytest.raises(ConnectFailedError, match="fake://b/"):
        await harness.connection.open()
    assert [len(connector.attempts) for connector in harness.connectors] == [1, 1]
    await harness.connection.close()


async def test_open_whose_preparation_fails_drops_the_link_and_raises(
    harness: ConnectionHarness,
) -> None:
    harness.owner.failures = [TopologyError("/", "queue 'q'", "406")]
    with pytest.raises(TopologyError):
        await harness.connection.open()
    assert harness.link.how_ended == "aborted"


async def test_preparation_that_takes_too_long_is_a_time_out(harness: ConnectionHarness) -> None:
    async def hang(link: Link) -> None:
        await asyncio.Event().wait()

    harness.owner.preparing = hang
    with pytest.raises(OperationTimeoutError, match="setting up the topology on fake://a/"):
        await harness.connection.open()
    assert harness.link.how_ended == "aborted"


async def test_link_that_dies_while_it_is_prepared_is_not_used(harness: ConnectionHarness) -> None:
    async def die(link: Link) -> None:
        assert isinstance(link, FakeLink)
        link.lose("cut while it was prepared")

    harness.owner.preparing = die
    with pytest.raises(TransportError, match="cut while it was prepared"):
        await harness.connection.open()
    assert "up" not in harness.owner.heard


async def test_close_while_opening_leaves_nothing_open(harness: ConnectionHarness) -> None:
    harness.first.gate = asyncio.Event()
    opening = asyncio.create_task(harness.connection.open())
    await settle()
    await harness.connection.close()
    harness.first.gate.set()
    with pytest.raises(BrokerClosedError):
        await opening
    assert harness.link.how_ended == "aborted"
    assert "up" not in harness.owner.heard


async def test_open_that_is_cancelled_while_preparing_drops_the_link(
    harness: ConnectionHarness,
) -> None:
    async def hang(link: Link) -> None:
        await asyncio.Event().wait()

    harness.owner.preparing = hang
    opening = asyncio.create_task(harness.connection.open())
    await settle()
    opening.cancel()
    await settle()
    assert opening.cancelled()
    assert harness.link.how_ended == "aborted"


# --------------------------------------------------------------------------- reconnecting


async def test_lost_link_is_replaced_at_once_the_first_time(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    before = asyncio.get_running_loop().time()
    harness.link.lose()
    link = await harness.connection.wait_up()
    assert link is harness.first.links[1]
    assert asyncio.get_running_loop().time() == before
    assert harness.owner.heard[2:] == [
        "down: connection to fake://a/ lost: cut",
        "prepare",
        "up",
    ]
    assert harness.connection.epoch == 2


async def test_waits_grow_while_nobody_answers(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    harness.first.failures = [REFUSED] * 5
    harness.link.lose()
    await harness.connection.wait_up()
    times = harness.first.attempts[1:]
    waits = [later - earlier for earlier, later in pairwise(times)]
    for wait, (least, most) in zip(waits, ((1, 2), (2, 3), (4, 5), (8, 8), (8, 8)), strict=True):
        assert least - 0.001 <= wait <= most + 0.001
    assert harness.owner.heard.count("failed: failed to connect to fake://a/: refused") == 5


async def test_link_that_dies_soon_after_it_came_up_makes_the_waits_grow(
    harness: ConnectionHarness,
) -> None:
    await harness.connection.open()
    ups = []
    for _ in range(4):
        lost = asyncio.get_running_loop().time()
        harness.first.link.lose()
        await harness.connection.wait_up()
        ups.append(asyncio.get_running_loop().time() - lost)
    assert ups[0] == 0
    assert 1 <= ups[1] <= 2 <= ups[2] <= 3
    assert 4 <= ups[3] <= 5


async def test_link_that_stayed_up_long_enough_resets_the_waits(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    for _ in range(3):
        harness.first.link.lose()
        await harness.connection.wait_up()
    await asyncio.sleep(31.0)
    lost = asyncio.get_running_loop().time()
    harness.first.link.lose()
    await harness.connection.wait_up()
    assert asyncio.get_running_loop().time() == lost
    harness.first.link.lose()
    await harness.connection.wait_up()
    assert 1 <= asyncio.get_running_loop().time() - lost <= 2


async def test_failed_preparation_counts_as_a_failed_address(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    harness.owner.failures = [TopologyError("/", "queue 'q'", "405 locked")] * 2
    harness.link.lose()
    await harness.connection.wait_up()
    assert [link.how_ended for link in harness.first.links] == ["lost", "aborted", "aborted", ""]
    assert harness.owner.heard.count("failed: vhost '/': queue 'q': 405 locked") == 2


async def test_lost_address_is_tried_after_all_others() -> None:
    harness = ConnectionHarness("fake://a/", "fake://b/", "fake://c/")
    a, b, c = harness.connectors
    await harness.connection.open()
    a.always = ConnectFailedError("fake://a/", "gone")
    a.link.lose()
    assert (await harness.connection.wait_up()).url == "fake://b/"
    assert harness.connection.url == "fake://b/"
    b.always = ConnectFailedError("fake://b/", "gone")
    b.link.lose()
    assert (await harness.connection.wait_up()).url == "fake://c/"
    a.always = None
    c.always = ConnectFailedError("fake://c/", "gone")
    c.link.lose()
    assert (await harness.connection.wait_up()).url == "fake://a/"
    assert [len(each.attempts) for each in (a, b, c)] == [2, 1, 1]
    await harness.connection.close()


async def test_retry_turned_off_means_no_new_attempt() -> None:
    harness = ConnectionHarness(enabled=False)
    await harness.connection.open()
    harness.link.lose()
    waiting = asyncio.create_task(harness.connection.wait_up())
    await asyncio.sleep(60.0)
    assert len(harness.first.attempts) == 1
    assert harness.connection.state == "closed"
    with pytest.raises(BrokerClosedError) as caught:
        await waiting
    assert "cut" in str(caught.value.__cause__)
    await harness.connection.close()


async def test_failure_that_is_not_worth_a_retry_gives_up_and_says_so(
    harness: ConnectionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.connection.open()
    harness.first.failures = [KeyError("a bug")]
    harness.link.lose()
    await asyncio.sleep(60.0)
    assert harness.connection.state == "closed"
    assert "given up" in caplog.text
    with pytest.raises(BrokerClosedError):
        await harness.connection.wait_up()


# --------------------------------------------------------------------------- waiting, closing


async def test_waiting_for_a_dead_link_that_is_not_reported_yet_does_not_spin(
    harness: ConnectionHarness,
) -> None:
    await harness.connection.open()
    harness.link.die_silently()
    waiting = asyncio.create_task(harness.connection.wait_up())
    await settle()
    assert not waiting.done()  # and `settle` returned, so no task keeps the loop busy
    harness.link.lose()
    assert await waiting is harness.first.links[1]


async def test_waiting_before_open_is_refused(harness: ConnectionHarness) -> None:
    with pytest.raises(BrokerClosedError):
        await harness.connection.wait_up()


async def test_close_while_reconnecting_ends_the_attempt_and_wakes_who_waits(
    harness: ConnectionHarness,
) -> None:
    await harness.connection.open()
    harness.first.gate = asyncio.Event()
    harness.link.lose()
    waiting = asyncio.create_task(harness.connection.wait_up())
    await settle()
    assert len(harness.first.attempts) == 2
    await harness.connection.close()
    with pytest.raises(BrokerClosedError):
        await waiting
    harness.first.gate.set()
    await settle()
    assert len(harness.first.links) == 1
    assert harness.connection.state == "closed"


async def test_close_while_waiting_to_try_again_is_immediate(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    harness.first.always = REFUSED
    harness.link.lose()
    await asyncio.sleep(30.0)
    before = asyncio.get_running_loop().time()
    await harness.connection.close()
    assert asyncio.get_running_loop().time() == before
    attempts = len(harness.first.attempts)
    await asyncio.sleep(60.0)
    assert len(harness.first.attempts) == attempts


async def test_close_closes_the_link_in_order_and_twice_has_no_effect(
    harness: ConnectionHarness,
) -> None:
    await harness.connection.open()
    await harness.connection.close()
    await harness.connection.close()
    assert harness.link.how_ended == "closed"
    assert not any(each.startswith("down") for each in harness.owner.heard)


async def test_abort_gets_a_new_link(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    harness.connection.abort("bounced")
    link = await harness.connection.wait_up()
    assert link is harness.first.links[1]
    assert harness.first.links[0].how_ended == "aborted"
    assert "down: connection to fake://a/ lost: bounced" in harness.owner.heard


async def test_loss_of_an_old_link_is_not_taken_for_the_present_one(
    harness: ConnectionHarness,
) -> None:
    await harness.connection.open()
    old = harness.link
    old.lose()
    await harness.connection.wait_up()
    old.lose("again")
    await settle()
    assert harness.connection.state == "up"
    assert len(harness.first.links) == 2


async def test_blocked_and_unblocked_are_passed_on(harness: ConnectionHarness) -> None:
    await harness.connection.open()
    assert harness.link.on_blocked is not None
    assert harness.link.on_unblocked is not None
    harness.link.on_blocked("low on memory")
    harness.link.on_unblocked()
    assert harness.owner.heard[-2:] == ["blocked: low on memory", "unblocked"]
