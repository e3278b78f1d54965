"""Several addresses, each with its own waits, and the first connection of a start that waits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from broker_client.config import RetryConfig
from broker_client.connection.addresses import Addresses
from broker_client.connection.connection import Connection
from broker_client.errors import BrokerClosedError, ConnectFailedError, TopologyError
from broker_client.transport.base import Link
from tests.support.links import FakeConnector
from tests.support.warp import WarpLoop, settle
from tests.unit.connection.test_connection import Owner

loop_factory = WarpLoop


def refused(connector: FakeConnector) -> ConnectFailedError:
    return ConnectFailedError(connector.url, "refused")


def a_retry(**changes: Any) -> RetryConfig:
    return RetryConfig.model_validate({"min": 1.0, "max": 8.0, "stable_after": 30.0, **changes})


class ConnectionHarness:
    def __init__(
        self, *retries: RetryConfig, fixed: bool = False, leader: Connection | None = None
    ) -> None:
        self.connectors = [FakeConnector(f"fake://{'abcdef'[at]}/") for at in range(len(retries))]
        self.owner = Owner()
        self.connection = Connection(
            "/",
            Addresses(self.connectors, retry=retries, connect_timeout=5.0, fixed=fixed),
            self.owner,
            leader=leader,
        )

    def order(self) -> list[str]:
        """The addresses that were tried, in order."""
        tried = [(at, each.url[7]) for each in self.connectors for at in each.attempts]
        return [name for _, name in sorted(tried, key=lambda one: one[0])]


def now() -> float:
    return asyncio.get_running_loop().time()


# --------------------------------------------------------------------------- which comes first


async def test_fixed_order_is_tried_from_the_first_again_after_every_outage() -> None:
    harness = ConnectionHarness(a_retry(), a_retry(), fixed=True)
    a, b = harness.connectors
    a.always = refused(a)
    await harness.connection.open()
    assert harness.connection.url == b.url
    a.always = None
    b.link.lose()
    assert (await harness.connection.wait_up()).url == a.url
    await harness.connection.close()


async def test_random_order_starts_with_the_address_that_worked_last() -> None:
    harness = ConnectionHarness(a_retry(), a_retry(), a_retry())
    a, b, _ = harness.connectors
    a.failures = [refused(a)]
    await harness.connection.open()
    harness.connection.abort("given up by us")
    assert (await harness.connection.wait_up()).url == b.url
    assert harness.connection.current == 1
    await harness.connection.close()


async def test_lost_link_is_replaced_at_another_address_at_once() -> None:
    harness = ConnectionHarness(a_retry(), a_retry())
    a, b = harness.connectors
    await harness.connection.open()
    a.link.lose()
    assert (await harness.connection.wait_up()).url == b.url
    assert len(a.attempts) == 1
    await harness.connection.close()


async def test_waits_of_one_address_do_not_hold_up_another_that_serves() -> None:
    harness = ConnectionHarness(a_retry(), a_retry())
    await harness.connection.open()
    outages = []
    for _ in range(6):  # the node in use dies every 25 s and is back 10 s later
        await asyncio.sleep(15.0)
        used = harness.connectors[harness.connection.current]
        used.always = refused(used)
        used.link.lose()
        lost = now()
        await harness.connection.wait_up()
        outages.append(now() - lost)
        await asyncio.sleep(10.0)
        used.always = None
    assert outages == [0.0] * 6
    await harness.connection.close()


async def test_addresses_whose_links_all_die_early_are_not_tried_without_pause() -> None:
    harness = ConnectionHarness(a_retry(), a_retry())
    await harness.connection.open()
    began = now()
    for _ in range(10):
        harness.connectors[harness.connection.current].link.lose()
        await harness.connection.wait_up()
    assert now() - began > 15.0
    await harness.connection.close()


@pytest.mark.parametrize(("used_for", "waits"), [(0.5, True), (1.5, False)])
async def test_link_that_was_of_use_for_as_long_as_the_first_wait_is_stable(
    used_for: float, waits: bool
) -> None:
    """Waits must not grow for an address that serves, however soon it dies."""
    harness = ConnectionHarness(a_retry())
    await harness.connection.open()
    outages = []
    for _ in range(4):
        began = now()
        await asyncio.sleep(2.0)
        link = harness.connectors[0].link
        link.used_at = began + used_for  # the last confirm or ack
        link.lose()
        lost = now()
        await harness.connection.wait_up()
        outages.append(now() - lost)
    assert outages[0] == 0.0
    assert [outage > 0.0 for outage in outages[1:]] == [waits] * 3
    await harness.connection.close()


async def test_address_whose_topology_fails_is_passed_over_in_one_round() -> None:
    harness = ConnectionHarness(a_retry(), a_retry())
    harness.owner.failures = [TopologyError("/", "queue 'q'", "404 home node down")]
    await harness.connection.open()
    assert harness.connection.url == harness.connectors[1].url
    assert now() == harness.connectors[0].attempts[0]
    await harness.connection.close()


async def test_addresses_that_do_not_answer_hold_up_no_other() -> None:
    harness = ConnectionHarness(a_retry(), a_retry(), a_retry())
    a, b, c = harness.connectors
    a.gate = b.gate = asyncio.Event()  # never set, as if packets were dropped
    began = now()
    await harness.connection.open()
    assert harness.connection.url == c.url
    assert now() - began <= 1.0
    assert harness.order() == ["a", "b", "c"]
    await harness.connection.close()


async def test_slow_address_wins_when_those_behind_it_fail() -> None:
    harness = ConnectionHarness(a_retry(), a_retry(), fixed=True)
    a, b = harness.connectors
    a.gate, b.always = asyncio.Event(), refused(b)
    opening = asyncio.create_task(harness.connection.open())
    await asyncio.sleep(2.0)
    assert len(b.attempts) == 1
    a.gate.set()
    await opening
    assert harness.connection.url == a.url
    await harness.connection.close()


async def test_link_that_loses_the_race_is_closed() -> None:
    harness = ConnectionHarness(a_retry(), a_retry(), fixed=True)
    a, b = harness.connectors
    a.gate = asyncio.Event()
    answered, prepare = asyncio.Event(), asyncio.Event()

    async def preparing(link: Link) -> None:
        answered.set()
        await prepare.wait()

    harness.owner.preparing = preparing
    opening = asyncio.create_task(harness.connection.open())
    await answered.wait()
    a.gate.set()  # answers while the link to b is made ready
    await settle()
    assert a.link.is_open
    prepare.set()
    await opening
    assert (harness.connection.url, b.link.is_open) == (b.url, True)
    assert a.link.how_ended == "aborted"
    await harness.connection.close()


async def test_topology_that_fails_leaves_the_address_that_answered_meanwhile() -> None:
    harness = ConnectionHarness(a_retry(), a_retry(), fixed=True)
    a, b = harness.connectors
    gate = a.gate = asyncio.Event()

    async def preparing(link: Link) -> None:
        gate.set()
        if link.url == b.url:
            raise TopologyError("/", "queue 'q'", "404 home node down")

    harness.owner.preparing = preparing
    await harness.connection.open()
    assert harness.connection.url == a.url
    assert [len(each.attempts) for each in (a, b)] == [1, 1]
    await harness.connection.close()


async def test_close_while_several_addresses_are_tried_leaves_nothing_open() -> None:
    harness = ConnectionHarness(a_retry(), a_retry())
    a, b = harness.connectors
    await harness.connection.open()
    a.gate = b.gate = asyncio.Event()
    a.link.lose()
    await asyncio.sleep(2.0)
    assert [len(each.attempts) for each in (a, b)] == [2, 1]
    await harness.connection.close()
    b.gate.set()
    await settle()
    assert not b.links


async def test_failed_attempts_leave_nothing_in_memory_however_long_it_takes() -> None:
    harness = ConnectionHarness(a_retry(max=1.0), a_retry(max=1.0))
    alive: weakref.WeakSet[Exception] = weakref.WeakSet()

    class Refusing(FakeConnector):
        async def connect(self, *, timeout: float) -> Any:
            self.attempts.append(now())
            error = refused(self)
            alive.add(error)
            raise error

    await harness.connection.open()
    for connector in harness.connectors:
        connector.connect = Refusing(connector.url).connect  # type: ignore[method-assign]
    harness.connectors[0].link.lose()
    made = 0
    for _ in range(10):
        await asyncio.sleep(100.0)
        made += len(alive)
        gc.collect()
        assert len(alive) <= 4
    assert made
    await harness.connection.close()


# --------------------------------------------------------------------------- waits of one's own


async def test_every_address_has_its_own_waits() -> None:
    hasty, patient = a_retry(max=1.0), a_retry(min=20.0, max=20.0)
    harness = ConnectionHarness(hasty, patient)
    a, b = harness.connectors
    await harness.connection.open()
    began = now()
    a.always, b.always = refused(a), refused(b)
    a.link.lose()
    await asyncio.sleep(50.0)
    assert len(a.attempts) > 40
    later = [round(at - began) for at in b.attempts]
    assert later == [0, 20, 40]
    await harness.connection.close()


async def test_each_address_gets_its_own_connect_timeout() -> None:
    class Timed(FakeConnector):
        async def connect(self, *, timeout: float) -> Any:
            seen.append(timeout)
            return await super().connect(timeout=timeout)

    seen: list[float] = []
    connectors = [Timed("fake://a/"), Timed("fake://b/")]
    connectors[0].always = refused(connectors[0])
    retry = a_retry()
    addresses = Addresses(connectors, retry=[retry, retry], connect_timeout=[2.0, 7.0])
    connection = Connection("/", addresses, Owner())
    await connection.open()
    assert seen == [2.0, 7.0]
    await connection.close()


async def test_address_without_retry_is_tried_at_the_start_only() -> None:
    harness = ConnectionHarness(a_retry(enabled=False), a_retry())
    a, b = harness.connectors
    await harness.connection.open()
    a.link.lose()
    assert (await harness.connection.wait_up()).url == b.url
    b.link.lose()
    await harness.connection.wait_up()
    assert len(a.attempts) == 1
    await harness.connection.close()


async def test_address_with_a_failure_not_worth_a_retry_does_not_end_the_others() -> None:
    harness = ConnectionHarness(a_retry(), a_retry())
    a, b = harness.connectors
    await harness.connection.open()
    a.always, b.failures = KeyError("a bug"), [refused(b)] * 3
    a.link.lose()
    assert (await harness.connection.wait_up()).url == b.url
    assert len(a.attempts) == 2
    await harness.connection.close()


# --------------------------------------------------------------------------- a patient start


async def test_patient_start_waits_for_the_broker() -> None:
    harness = ConnectionHarness(a_retry())
    a = harness.connectors[0]
    a.failures = [refused(a)] * 3
    await harness.connection.open(retry=True)
    assert harness.connection.state == "up"
    assert len(a.attempts) == 4
    await harness.connection.close()


async def test_patient_start_ends_in_time_with_the_last_failure() -> None:
    harness = ConnectionHarness(a_retry())
    a, began = harness.connectors[0], now()
    a.always = refused(a)
    with pytest.raises(ConnectFailedError, match="refused"):
        await harness.connection.open(retry=True, timeout=10.0)
    assert now() - began == pytest.approx(10.0)
    await harness.connection.close()


async def test_patient_start_that_gets_no_answer_at_all_says_how_long_it_waited() -> None:
    harness = ConnectionHarness(a_retry())
    harness.connectors[0].gate = asyncio.Event()
    with pytest.raises(ConnectFailedError, match="no answer within 3 s"):
        await harness.connection.open(retry=True, timeout=3.0)
    await harness.connection.close()


async def test_patient_start_without_retry_is_over_after_one_attempt() -> None:
    harness = ConnectionHarness(a_retry(enabled=False))
    a = harness.connectors[0]
    a.always = refused(a)
    with pytest.raises(ConnectFailedError):
        await harness.connection.open(retry=True)
    assert len(a.attempts) == 1
    await harness.connection.close()


# --------------------------------------------------------------------------- one that follows


async def test_connection_begun_in_the_background_comes_up_when_somebody_answers() -> None:
    harness = ConnectionHarness(a_retry())
    a = harness.connectors[0]
    a.failures = [refused(a)] * 2
    harness.connection.start()
    harness.connection.start()
    assert (await harness.connection.wait_up()).url == a.url
    assert len(a.attempts) == 3
    await harness.connection.close()


async def test_follower_waits_for_its_leader_and_goes_to_its_address() -> None:
    leader = ConnectionHarness(a_retry(), a_retry())
    a, b = leader.connectors
    follower = ConnectionHarness(a_retry(), a_retry(), leader=leader.connection)
    a.always = refused(a)
    await leader.connection.open()
    b.always = refused(b)
    b.link.lose()
    await settle()
    follower.connection.start()
    await settle()
    assert follower.order() == []
    b.always = None
    assert (await follower.connection.wait_up()).url == b.url
    assert follower.order() == ["b"]
    await follower.connection.close()
    await leader.connection.close()


async def test_follower_ends_with_its_leader() -> None:
    leader = ConnectionHarness(a_retry())
    follower = ConnectionHarness(a_retry(), leader=leader.connection)
    follower.connection.start()
    await settle()
    with pytest.raises(BrokerClosedError):
        await follower.connection.wait_up()
