"""How many publishes may be unconfirmed, as their confirms come."""

from __future__ import annotations

import pytest

from broker_client.publishing.window import Window


def _on_a_slow_link(most: int = 1000, *, now: float = 100.0) -> Window:
    """A window that was told at `now` of a confirm after more than a second."""
    window = Window(most)
    window.confirmed(1, 2.0, now)
    assert window.size == most
    return window


def test_window_is_full_at_first_and_stays_so_while_confirms_are_quick() -> None:
    window = Window(10)
    assert window.size == 10
    window.confirmed(3, 0.999, 1.0)
    assert window.size == 10


def test_window_begins_at_one_after_a_lost_channel_and_grows_with_what_is_confirmed() -> None:
    window = Window(10)
    window.confirmed(1, 0.8, 1.0)
    window.restart()
    assert (window.size, window.latency) == (1, 0.0)
    sizes = []
    for count in (1, 2, 4, 8):
        window.confirmed(count, 0.1, 2.0)
        sizes.append(window.size)
    assert sizes == [2, 4, 8, 10]


def test_latency_rises_by_a_quarter_of_the_difference_and_falls_at_once() -> None:
    window, seen = Window(10), []
    for latency in (0.8, 0.8, 0.1):
        window.confirmed(1, latency, 1.0)
        seen.append(window.latency)
    assert seen == pytest.approx([0.2, 0.35, 0.1])


@pytest.mark.parametrize("seconds", [0.25, 0.5, 1.0])
def test_window_on_a_slow_link_shrinks_to_what_is_confirmed_within_a_second(seconds: float) -> None:
    window = _on_a_slow_link()
    window.confirmed(5, 1.0, 100.125)  # too early to tell a rate
    assert window.size == 1000
    window.confirmed(15, 2.0, 100.0 + seconds)
    assert window.size == 20 / seconds


def test_each_rate_is_that_of_the_time_since_the_one_before() -> None:
    window = _on_a_slow_link()
    window.confirmed(20, 2.0, 100.5)
    window.confirmed(10, 2.0, 101.0)
    assert window.size == 20


def test_pause_of_more_than_a_second_tells_no_rate() -> None:
    window = _on_a_slow_link()
    window.confirmed(5, 2.0, 100.125)
    window.confirmed(1, 2.0, 101.25)
    assert window.size == 1000
    window.confirmed(10, 2.0, 101.75)
    assert window.size == 20


def test_quick_confirm_starts_the_measurement_again() -> None:
    window = _on_a_slow_link()
    window.confirmed(50, 2.0, 100.125)
    window.confirmed(1, 0.5, 100.25)
    window.confirmed(10, 2.0, 100.75)
    assert window.size == 20


def test_window_never_goes_below_one_and_a_slow_confirm_never_widens_it() -> None:
    window = _on_a_slow_link()
    window.confirmed(4, 2.0, 100.5)
    assert window.size == 8
    window.confirmed(100, 2.0, 101.0)
    assert window.size == 8
    window.confirmed(0, 2.0, 102.0)
    assert window.size == 1
