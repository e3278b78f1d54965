"""What a failed channel says of the publishes on it, beside who uses the connection."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import pytest

from broker_client.errors import ChannelClosedError
from broker_client.publication import Publication
from broker_client.publishing.failures import ChannelFailures, Next
from broker_client.publishing.suspicion import Suspicion
from broker_client.publishing.waiting import WaitingLine

LOST = ChannelClosedError(0, "the link is gone")
CONNECTION_CLOSED = ChannelClosedError(0, "541 INTERNAL_ERROR", connection_code=541)


class Sent:
    """A fake publication with what judging needs."""

    is_ended = False
    suspected = False
    _orders = count(1)

    def __init__(self) -> None:
        self.order = next(self._orders)


def _made(number: int) -> list[Publication]:
    return [cast(Any, Sent()) for _ in range(number)]


@pytest.fixture
def suspicion() -> Suspicion:
    return Suspicion()


@pytest.fixture
def failures(suspicion: Suspicion) -> ChannelFailures:
    nothing = cast(Any, None)  # nothing ends here
    return ChannelFailures("orders", WaitingLine(), nothing, suspicion, nothing)


async def test_connection_closed_over_what_has_ended_holds_up_no_other_sender(
    failures: ChannelFailures,
) -> None:
    assert await failures.judge(CONNECTION_CLOSED, [], has_turn=False) is Next.PAUSE
    assert not failures.has_suspects


async def test_connection_closed_over_publishes_has_them_sent_alone_until_none_is_left(
    failures: ChannelFailures, suspicion: Suspicion
) -> None:
    sent = _made(2)
    assert await failures.judge(CONNECTION_CLOSED, sent, has_turn=False) is Next.SEND
    assert failures.has_suspects
    assert [each.suspected for each in sent] == [True, True]
    failures.clear_suspects()
    assert not failures.has_suspects
    await suspicion.wait_none()


@pytest.mark.parametrize(("suspected", "counts"), [(False, True), (True, False)])
async def test_link_lost_over_many_counts_for_the_first_unless_each_is_sent_alone(
    failures: ChannelFailures, suspicion: Suspicion, suspected: bool, counts: bool
) -> None:
    alone, first, second = _made(3)
    suspicion.losses.is_the_cause(alone)
    first.suspected = suspected
    for _ in range(3):
        await failures.judge(LOST, [first, second], has_turn=False)
    tried = suspicion.losses.another(first, [first, second])
    assert (tried is second) is counts
