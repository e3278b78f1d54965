"""Ready messages keep their positions, however they are taken and returned."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import pytest

from broker_client.core.ready import PriorityReady, Ready


@dataclass(order=True)
class Entry:
    position: int
    priority: int = 0
    expires_at: float | None = None


def _taken(ready: Ready[Entry]) -> list[Entry]:
    """Everything, by peek and pop; they agree."""
    taken = []
    while ready:
        head = ready.peek()
        taken.append(ready.pop())
        assert taken[-1] is head
    assert ready.peek() is None
    return taken


@pytest.mark.parametrize("given_back", list(permutations([1, 2, 3, 4])))
def test_what_is_given_back_in_any_order_comes_in_its_place(given_back: tuple[int, ...]) -> None:
    ready = Ready[Entry]()
    entries = [Entry(position) for position in range(1, 7)]
    for entry in entries:
        ready.push(entry)
    for _ in given_back:
        ready.pop()
    there = entries[4:]
    for position in given_back:
        ready.restore(entries[position - 1])
        there = sorted([*there, entries[position - 1]])
        assert list(ready) == there
    assert _taken(ready) == entries


def test_upcoming_is_no_more_than_asked_for() -> None:
    ready, ranked = Ready[Entry](), PriorityReady[Entry]()
    for position in range(4):
        ready.push(Entry(position))
        ranked.push(Entry(position, priority=position % 2))
    assert [each.position for each in ready.upcoming(2)] == [0, 1]
    assert [each.position for each in ranked.upcoming(3)] == [1, 3, 0]


def test_priorities_are_counted_however_messages_leave() -> None:
    ready = PriorityReady[Entry]()
    assert list(ready) == []
    for position, priority in enumerate([0, 5, 0, 5, 2]):
        ready.push(Entry(position, priority, expires_at=1.0 if priority == 0 else None))
    assert [each.position for each in ready] == [1, 3, 4, 0, 2]
    assert ready.pop_expired(0.5) is None
    expired = ready.pop_expired(1.0)
    assert expired is not None
    assert (expired.position, len(ready)) == (0, 4)
    assert (ready.pop_least().position, len(ready)) == (2, 3)
    assert ready.pop_expired(9.0) is None
    assert [each.position for each in ready.drain()] == [1, 3, 4]
    assert len(ready) == 0
    with pytest.raises(IndexError, match="nothing is ready"):
        ready.pop()
    ready.push(Entry(9))
    assert [each.position for each in _taken(ready)] == [9]
