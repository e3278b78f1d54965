"""The waiting line of one sender."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

from broker_client.publishing.waiting import WaitingLine


class Waiting:
    """A fake publication with what the line needs."""

    _orders = count(1)

    def __init__(self) -> None:
        self.order = next(self._orders)


def _made(number: int) -> list[Any]:
    return [cast(Any, Waiting()) for _ in range(number)]


def test_one_that_was_set_aside_is_removed_once_and_others_stay() -> None:
    line, made = WaitingLine(), _made(4)
    line.put_back(made[1:3])
    line.set_aside(made[0])
    assert list(line) == made[:3]
    assert line.remove(made[2])
    assert line.remove(made[0])
    assert not line.remove(made[0])
    assert not line.remove(made[3])
    assert list(line) == [made[1]]


def test_what_was_taken_back_goes_before_and_between_what_waits() -> None:
    line, made = WaitingLine(), _made(6)
    line.put_back([made[1], made[3], made[5]])
    line.put_back([made[4], made[0]])
    assert list(line) == [made[0], made[1], made[3], made[4], made[5]]
    line.put_back([made[2]])
    assert list(line) == made
