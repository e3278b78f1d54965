"""Unconfirmed publishes, by sequence number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class ConfirmLedger(Generic[T]):
    """What was published on one channel and is not confirmed, in the order of sending.

    Brokers confirm single publishes or ranges, in any order; each item leaves once.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def add(self, first: int, items: Iterable[T]) -> None:
        """Enter `items`, published under the numbers from `first` on."""
        self._items.update(zip(count(first), items, strict=False))

    def settle(self, first: int, last: int) -> list[T]:
        """Take out the items from `first` to `last`; numbers that are not here are passed over."""
        items = self._items
        if last - first < len(items):
            found = [items.pop(seq, None) for seq in range(first, last + 1)]
            return [item for item in found if item is not None]
        # A peer may name any number: the work is bounded by what is here.
        return [items.pop(seq) for seq in [seq for seq in items if first <= seq <= last]]

    def take_all(self) -> list[T]:
        """Take out everything."""
        items = list(self._items.values())
        self._items.clear()
        return items
