"""Sets that are walked through in one order in every run.

A set of objects is walked through by their addresses, which differ from run to run. Where the
client, aiormq or the server do so with sockets, tasks or futures, the order is anybody's guess;
here it is the order of insertion.
"""

from __future__ import annotations

import asyncio.tasks
import contextlib
from collections.abc import Iterable, Iterator, MutableSet
from typing import Any
from unittest import mock

import aiormq.base

from broker_client.runtime import tasks
from broker_client.server import channel, server

_MODULES = (asyncio.tasks, aiormq.base, tasks, channel, server)


class OrderedSet(MutableSet[Any]):
    """As `set`, in the order of insertion."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: Any) -> None:
        self._items[value] = None

    def discard(self, value: Any) -> None:
        self._items.pop(value, None)


@contextlib.contextmanager
def ordered_sets() -> Iterator[None]:
    """Have the modules whose order could matter make ordered sets."""
    with contextlib.ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(mock.patch.object(module, "set", OrderedSet, create=True))
        yield
