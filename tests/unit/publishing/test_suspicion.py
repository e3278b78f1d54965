"""Which publish costs the link, told from chance."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

from broker_client.publication import Publication
from broker_client.publishing.suspicion import Losses


class Sent:
    """A fake publication with what `Losses` needs."""

    is_ended = False
    _orders = count(1)

    def __init__(self) -> None:
        self.order = next(self._orders)


def _made(number: int) -> list[Publication]:
    return [cast(Any, Sent()) for _ in range(number)]


def _losses_until_it_is_the_cause(losses: Losses, publication: Publication) -> int:
    """How often the link is lost over `publication`, while another passes each time."""
    for times in range(1, 100):
        losses.passed(_made(1))
        if losses.is_the_cause(publication):
            return times
    raise AssertionError("never")


def test_publish_is_the_cause_at_the_sixth_loss_when_others_pass_each_time() -> None:
    [lost] = _made(1)
    assert _losses_until_it_is_the_cause(Losses(), lost) == 6


def test_losses_with_nothing_confirmed_between_them_blame_no_publish() -> None:
    losses, (first, second, other) = Losses(), _made(3)
    losses.is_the_cause(first)
    for _ in range(10_000):  # so much passes that a single loss would be most unlikely
        losses.passed([other])
    losses.is_the_cause(first)
    assert not losses.is_the_cause(second)
    assert not losses.is_the_cause(second)


def test_loss_over_others_counts_as_the_one_since_the_last_confirm() -> None:
    losses, (lost, other) = Losses(), _made(2)
    for _ in range(100):
        losses.passed(_made(1))
        losses.note(other)
        assert not losses.is_the_cause(lost)


def test_publish_that_passes_at_last_shows_how_often_the_link_is_lost_by_chance() -> None:
    losses, (innocent, lost) = Losses(), _made(2)
    for publication in (lost, innocent, innocent, innocent):
        losses.is_the_cause(publication)
    losses.passed([*_made(40), innocent])
    assert _losses_until_it_is_the_cause(losses, lost) == 8


def test_losses_and_passes_of_long_ago_are_forgotten() -> None:
    losses, (innocent, lost) = Losses(), _made(2)
    losses.is_the_cause(innocent)
    for _ in range(100):
        losses.passed(_made(1))
    losses.passed([innocent])
    for _ in range(20):
        losses.passed(_made(1))
    assert _losses_until_it_is_the_cause(losses, lost) == 6


def test_another_is_tried_after_three_losses_over_one_the_one_that_cost_fewest() -> None:
    losses, (lost, once, never) = Losses(), _made(3)
    line = [lost, once, never]
    assert losses.another(lost, line) is None
    losses.is_the_cause(once)
    for _ in range(2):
        losses.is_the_cause(lost)
        assert losses.another(lost, line) is None
    losses.is_the_cause(lost)
    assert losses.another(lost, line) is never


def test_losses_over_the_first_of_many_count_once_one_was_lost_alone() -> None:
    losses, (alone, first, other) = Losses(), _made(3)
    losses.note(first)  # a plain loss of the link: nothing is under suspicion
    losses.is_the_cause(alone)
    for _ in range(2):
        losses.note(first)
        assert losses.another(first, [first, other]) is None
    losses.note(first)
    assert losses.another(first, [first, other]) is other
