from __future__ import annotations

import pytest

from broker_client.core.in_flight import InFlightLedger
from broker_client.errors import StaleDeliveryError


@pytest.fixture
def ledger() -> InFlightLedger[str]:
    return InFlightLedger()


def test_tags_start_at_one_and_count_those_settled_as_they_were_sent(
    ledger: InFlightLedger[str],
) -> None:
    assert (ledger.start("a", 1.0), ledger.issue(), ledger.start("b", 1.0)) == (1, 2, 3)


def test_a_settled_delivery_never_expires(ledger: InFlightLedger[str]) -> None:
    tag = ledger.start("a", 60.0)
    assert ledger.settle(tag) == "a"
    assert ledger.settle(tag) is None
    assert (ledger.next_deadline(), ledger.expire(1e9)) == (None, [])


def test_a_delivery_without_deadline_stays(ledger: InFlightLedger[str]) -> None:
    ledger.start("a", None)
    assert (ledger.expire(1e9), len(ledger)) == ([], 1)


def test_extending_gives_more_time_and_never_less(ledger: InFlightLedger[str]) -> None:
    ledger.start("a", 5.0)
    assert (ledger.extend(1, 9.0), ledger.deadline(1)) == (9.0, 9.0)
    assert (ledger.extend(1, 7.0), ledger.deadline(1)) == (9.0, 9.0)


def test_extending_one_without_a_deadline_leaves_it_without(ledger: InFlightLedger[str]) -> None:
    ledger.start("a", None)
    ledger.extend(1, 5.0)
    assert ledger.deadline(1) is None


def test_extending_what_is_not_in_flight_is_refused_and_changes_nothing(
    ledger: InFlightLedger[str],
) -> None:
    with pytest.raises(StaleDeliveryError, match="delivery 1 is not in flight"):
        ledger.extend(1, 5.0)
    assert ledger.next_deadline() is None


def test_settle_through_takes_up_to_the_tag_in_order(ledger: InFlightLedger[str]) -> None:
    for entry in "abc":
        ledger.start(entry, 1.0)
    assert (ledger.settle_through(2), ledger.settle_all()) == (["a", "b"], ["c"])


def test_no_more_expire_than_asked_for_the_earliest_first(ledger: InFlightLedger[str]) -> None:
    for number, entry in enumerate("abc"):
        ledger.start(entry, 3.0 - number)
    assert ledger.expire(9.0, 2) == [(3, "c"), (2, "b")]
    assert ledger.tags() == [1]


def test_a_time_out_is_forgiven_once(ledger: InFlightLedger[str]) -> None:
    ledger.start("a", 1.0)
    assert not ledger.forgives(1)
    ledger.expire(1.0)
    assert (ledger.forgives(1), ledger.forgives(1)) == (True, False)


def test_what_is_remembered_of_time_outs_is_bounded_and_old_ones_stay_forgiven(
    ledger: InFlightLedger[str],
) -> None:
    for _ in range(5_000):
        ledger.start("a", 1.0)
    alive = ledger.start("b", 9.0)
    ledger.expire(1.0)
    assert len(ledger._lapsed) == 1_000
    assert ledger.forgives(1)
    assert (ledger.forgives(4_000), ledger.forgives(4_000)) == (True, True)  # the last forgotten
    assert (ledger.forgives(4_001), ledger.forgives(4_001)) == (True, False)
    assert ledger.forgives(5_000)
    assert not ledger.forgives(alive)
    assert not ledger.forgives(9_999)


def test_of_many_those_through_a_tag_are_taken_and_the_rest_keep_their_deadlines(
    ledger: InFlightLedger[str],
) -> None:
    for number in range(1, 3_001):
        ledger.start(f"m{number}", float(number))
    ledger.extend(2_999, 5_000.0)
    taken = ledger.settle_through(2_990)
    assert list(taken) == [f"m{number}" for number in range(1, 2_991)]
    assert ledger.tags() == list(range(2_991, 3_001))
    assert (2_990 in ledger, ledger.settle(1), ledger.next_deadline()) == (False, None, 2_991.0)
    assert ledger.deadline(2_999) == 5_000.0
    assert [tag for tag, _ in ledger.expire(4_000.0)] == [*range(2_991, 2_999), 3_000]


@pytest.mark.parametrize("more", [10, 5_000])
def test_those_through_a_tag_are_taken_where_many_tags_before_it_are_settled(
    ledger: InFlightLedger[str], more: int
) -> None:
    for _ in range(10_000):
        ledger.issue()
    for number in range(more):
        ledger.start(f"m{number}", None)
    assert ledger.settle(10_002) == "m1"
    assert list(ledger.settle_through(10_004)) == ["m0", "m2", "m3"]
    assert list(ledger.settle_through(10_006)) == ["m4", "m5"]
    assert list(ledger.settle_all()) == [f"m{number}" for number in range(6, more)]
    assert len(ledger) == 0
