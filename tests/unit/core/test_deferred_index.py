"""The deferred messages of a queue, by due time and by id."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from broker_client.core.deferred import Deferred


@dataclass(eq=False)
class Waiting:
    position: int
    priority: int = 0
    expires_at: float | None = None


def ids(entries: list[Waiting]) -> list[int]:
    return [entry.position for entry in entries]


def test_those_chosen_by_id_come_earliest_first_each_once() -> None:
    deferred: Deferred[Waiting] = Deferred()
    for position, due_at in enumerate([30.0, 10.0, 20.0, 10.0]):
        deferred.add(Waiting(position), due_at)
    assert ids(deferred.chosen([0, 3, 9, 1, 0])) == [1, 3, 0]
    assert ids(deferred.entries()) == [1, 3, 2, 0]
    assert ids(deferred.earliest(2)) == [1, 3]
    assert len(deferred) == 4  # they were left in place


def test_one_that_is_discarded_is_chosen_no_more() -> None:
    deferred: Deferred[Waiting] = Deferred()
    first, second = Waiting(1), Waiting(2)
    deferred.add(first, 10.0)
    deferred.add(second, 20.0)
    assert (deferred.discard(first), deferred.discard(first)) == (True, False)
    assert (deferred.due_at(first), deferred.due_at(second)) == (None, 20.0)
    assert deferred.chosen([1, 2]) == [second]
    assert (deferred.pop_due(19.0), deferred.pop_due(20.0)) == ([], [second])


def test_drained_one_by_one_they_come_as_they_were_added() -> None:
    deferred: Deferred[Waiting] = Deferred()
    for position, due_at in enumerate([30.0, 10.0, 20.0]):
        deferred.add(Waiting(position), due_at)
    assert ids(list(deferred.drain())) == [0, 1, 2]
    assert (len(deferred), deferred.next_at()) == (0, None)


def test_the_earliest_are_found_where_times_come_in_any_order() -> None:
    rng = Random(7)
    deferred: Deferred[Waiting] = Deferred()
    times = [rng.uniform(0.0, 50.0) for _ in range(1_000)]
    for position, due_at in enumerate(times):
        deferred.add(Waiting(position), due_at)
    ordered = sorted(range(1_000), key=times.__getitem__)
    assert ids(deferred.earliest(10)) == ordered[:10]
    assert ids(deferred.earliest(2_000)) == ordered


def test_no_more_come_due_than_asked_for_the_earliest_first() -> None:
    deferred: Deferred[Waiting] = Deferred()
    for position, due_at in enumerate([30.0, 10.0, 20.0]):
        deferred.add(Waiting(position), due_at)
    assert ids(deferred.pop_due(99.0, 2)) == [1, 2]
    assert len(deferred) == 1


def test_known_ids_are_those_that_wait() -> None:
    deferred: Deferred[Waiting] = Deferred()
    deferred.add(Waiting(1), 10.0)
    assert deferred.known([1, 9, 1]) == [1]
