from __future__ import annotations

import gc
import random
import weakref

import pytest

from broker_client.runtime.deadlines import Deadlines


def test_keys_are_due_exactly_at_their_time_and_earliest_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        deadlines.set(key, at)
    assert deadlines.pop_due(0.999) == []
    assert deadlines.pop_due(2.0) == ["a", "b"]
    assert deadlines.first() == (3.0, "c")


def test_equal_times_keep_the_order_of_arrival_and_never_compare_keys() -> None:
    deadlines: Deadlines[object] = Deadlines()
    keys = [object(), object(), object()]
    for key in keys:
        deadlines.set(key, 1.0)
    assert deadlines.pop_due(1.0) == keys


def test_a_moved_key_is_due_only_at_its_new_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    assert (deadlines.next_at(), deadlines.pop_due(4.9), len(deadlines)) == (5.0, [], 1)
    assert deadlines.pop_due(5.0) == ["a"]


def test_a_discarded_key_is_never_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.discard("a")
    deadlines.discard("unknown")
    assert (deadlines.next_at(), deadlines.first(), deadlines.get("a")) == (None, None, None)
    assert "a" not in deadlines


@pytest.mark.parametrize("step", [1, -1])
def test_many_moves_leave_little_behind(step: int) -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("last", 1e9)
    for n in range(10_000):
        deadlines.set("a", float(step * n))
    left = len(deadlines._heap) + len(deadlines._line)
    assert left < 200


def test_times_in_any_order_come_out_in_order_and_equal_ones_as_they_came() -> None:
    deadlines: Deadlines[int] = Deadlines()
    rng = random.Random(1)
    times = [float(rng.randrange(50)) for _ in range(1_000)]
    for key, at in enumerate(times):
        deadlines.set(key, at)
    moved = rng.sample(range(1_000), 300)
    for key in moved:
        deadlines.set(key, times[key])
    gone = set(rng.sample(range(1_000), 300))
    for key in gone:
        deadlines.discard(key)
    turn = {key: n for n, key in enumerate([*range(1_000), *moved])}  # the last one counts
    left = sorted(set(range(1_000)) - gone, key=lambda key: (times[key], turn[key]))
    assert deadlines.keys() == left
    assert [deadlines.get(key) for key in left] == [times[key] for key in left]
    assert deadlines.pop_due(25.0, limit=10) == left[:10]
    assert deadlines.pop_due(25.0) == [key for key in left[10:] if times[key] <= 25.0]
    assert deadlines.pop_due(50.0) == [key for key in left[10:] if times[key] > 25.0]
    assert (len(deadlines), deadlines.next_at()) == (0, None)


class WatchedKey:
    """A key that reports when it is no longer referenced."""


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
def test_keys_that_are_gone_are_not_held(order: int) -> None:
    deadlines: Deadlines[WatchedKey] = Deadlines()
    keys = [WatchedKey() for _ in range(1000)]
    for at, key in enumerate(keys):
        deadlines.set(key, float(at))
    watched = weakref.WeakSet(keys)
    for key in keys[::order]:
        deadlines.discard(key)
    del keys, key
    gc.collect()
    assert len(watched) < 100
    assert (len(deadlines), deadlines.next_at()) == (0, None)


def test_one_key_that_stays_does_not_hold_those_behind_it() -> None:
    deadlines: Deadlines[WatchedKey] = Deadlines()
    keys = [WatchedKey() for _ in range(1000)]
    for at, key in enumerate(keys):
        deadlines.set(key, float(at))
    watched = weakref.WeakSet(keys)
    for key in keys[1:]:
        deadlines.discard(key)
    first = keys[0]
    del keys, key
    gc.collect()
    assert len(watched) < 100
    assert deadlines.first() == (0.0, first)


def test_keys_beside_the_line_are_still_due_after_a_rebuild() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(-1, 1_000.0)
    earlier = list(range(50))
    for key in earlier:  # earlier than the last in line: they wait beside it
        deadlines.set(key, 500.0 - key)
    for key in range(100, 1_000):  # most are stale soon, which leads to a rebuild
        deadlines.set(key, 2_000.0)
        deadlines.discard(key)
    assert deadlines.pop_due(500.0) == earlier[::-1]
    assert deadlines.pop_due(1_000.0) == [-1]
