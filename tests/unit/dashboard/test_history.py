"""The history of samples, in bounded memory."""

from __future__ import annotations

from broker_client.dashboard.history import SERIES, History, Ring

ZERO = [0.0] * len(SERIES)


def some(ready: float) -> list[float]:
    return [ready, *ZERO[1:]]


def test_points_have_gaps_where_nothing_was_measured() -> None:
    ring = Ring(5.0, 4)
    ring.put(100.0, some(1))
    ring.put(111.0, some(3))
    assert ring.points(114.9)[0] == [None, 1.0, None, 3.0]


def test_old_points_give_way() -> None:
    ring = Ring(5.0, 4)
    for at in range(6):
        ring.put(at * 5.0, some(at))
    assert ring.points(25.0)[0] == [2.0, 3.0, 4.0, 5.0]
    assert ring.points(40.0)[0] == [5.0, None, None, None]
    assert ring.points(1000.0)[0] == [None] * 4


def test_of_two_within_a_step_the_later_counts() -> None:
    ring = Ring(60.0, 2)
    ring.put(60.0, some(1))
    ring.put(119.0, some(2))
    assert ring.points(119.0)[0] == [None, 2.0]


def test_growth_is_from_the_first_that_is_known() -> None:
    ring = Ring(5.0, 100)
    assert ring.growth(0.0, 300.0) == 0
    for at, ready in ((0, 50), (200, 10), (400, 25)):
        ring.put(float(at), some(ready))
    assert ring.growth(400.0, 300.0) == 15


async def test_sums_of_visible_vhosts_alone_are_shown() -> None:
    history = History()
    for vhost, ready in (("a", 1), ("b", 10), ("c", 100)):
        history.put_vhost(vhost, 60.0, some(ready))
    shown = await history.shown(60.0, "coarse", {"a", "c"}, None)
    assert (shown["step"], shown["time"], len(shown["ready"])) == (60.0, 60, 1440)
    assert shown["ready"][-1] == 101
    assert shown["ready"][0] is None
    assert (await history.shown(60.0, "fine", set(), None))["ready"] == []


async def test_idle_queue_costs_nothing_and_a_deleted_one_no_longer() -> None:
    history = History()
    assert history.put_queue(("/", "q"), 0.0, ZERO) is None
    assert history.put_queue(("/", "q"), 0.0, some(1)) is not None
    assert history.put_queue(("/", "q"), 5.0, ZERO) is not None
    assert (await history.shown(5.0, "fine", set(), ("/", "q")))["ready"][-2:] == [1.0, 0.0]
    history.forget({"/"}, set())
    assert history.queue(("/", "q")) is None


def test_no_more_queues_than_are_kept() -> None:
    history = History()
    kept = [history.put_queue(("/", str(each)), 0.0, some(1)) for each in range(2001)]
    assert kept[1999] is not None
    assert kept[2000] is None
