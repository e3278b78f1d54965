"""Bugs to plant: a simulation that does not find them proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from broker_client.consuming.batches import Batches
from broker_client.consuming.checks import Deduplication
from broker_client.consuming.shovels import Shovel
from broker_client.core.in_flight import InFlightLedger
from broker_client.core.ready import Ready
from broker_client.core.records import Settled
from broker_client.node.effect_runner import EffectRunner
from broker_client.publication import Publication
from broker_client.publishing import waiting
from broker_client.publishing.outbox import Outbox
from broker_client.publishing.waiting import WaitingLine
from broker_client.store.batch import Batch
from broker_client.store.sqlite import StoreFile


@dataclass(frozen=True)
class Bug:
    """A mistake that somebody could make."""

    what: str
    levels: tuple[str, ...]
    """Where it shall be found."""
    planted: Callable[[], AbstractContextManager[Any]]


def _replaced(owner: object, name: str, change: Callable[[Any], Any]) -> Any:
    """`owner.name` as `change` makes it of the original."""
    return mock.patch.object(owner, name, change(getattr(owner, name)))


def _skips_sync(original: Any) -> Any:
    def open(self: StoreFile, *args: Any) -> None:
        original(self, *args)
        self.connection.execute("PRAGMA synchronous = OFF")

    return open


def _confirms_early(original: Any) -> Any:
    def commit(self: EffectRunner) -> None:
        held, self._held = self._held, []
        self._send(held)
        original(self)

    return commit


def _forgets_at_disconnect(original: Any) -> Any:
    def settle_all(self: InFlightLedger[Any]) -> list[Any]:
        entries: list[Any] = list(original(self))
        for entry in entries[2:]:
            entry.queue.in_flight -= 1
        return entries[:2]

    return settle_all


def _shares_leases(original: Any) -> Any:
    def expire(self: InFlightLedger[Any], now: float, limit: int | None = None) -> Any:
        due = original(self, now, limit)
        for tag, entry in due:
            self._flying.put(tag, now + 30.0, entry)
        return due

    return expire


def _requeues_at_the_tail(original: Any) -> Any:
    def restore(self: Ready[Any], entry: Any) -> None:
        self.tail.append(entry)

    return restore


def _ends_twice(original: Any) -> Any:
    def succeed(self: Publication, now: float) -> None:
        original(self, now)
        if self._paused:  # it may have been sent twice, and confirmed twice
            original(self, now)

    return succeed


def _drops_a_settlement(original: Any) -> Any:
    def add(self: Batch, records: Any) -> None:
        records = list(records)
        settled = [each for each in records if isinstance(each, Settled)]
        original(self, [each for each in records if each not in settled[1:]])

    return add


def _overtakes_in_two_places(original: Any) -> Any:
    def put_first(self: WaitingLine, publication: Publication) -> None:
        self.line.appendleft(publication)

    return put_first


def _remembers_early(original: Any) -> Any:
    async def begin(self: Deduplication, key: str, entry: Any) -> Any:
        is_new = await original(self, key, entry)
        await self.remember(key)
        return is_new

    return begin


def _acks_first(original: Any) -> Any:
    async def move(self: Shovel, message: Any, content: Any, ack_or_nack: Any) -> None:
        async def done(*arguments: Any) -> None: ...

        await ack_or_nack()
        await original(self, message, content, done)

    return move


def _handles_the_first_only(original: Any) -> Any:
    def init(self: Batches, config: Any, run: Any, tasks: Any, name: str) -> None:
        original(self, config, lambda many, contents: run(many[:1], contents[:1]), tasks, name)

    return init


@contextlib.contextmanager
def _outbox_acks_first() -> Iterator[None]:
    original = Outbox._on_delivery

    def on_delivery(self: Outbox, delivery: Any) -> None:
        original(self, delivery)
        assert self._reader is not None
        self._reader.ack(delivery.delivery_tag)

    with (
        mock.patch.object(Outbox, "_on_delivery", on_delivery),
        mock.patch.object(Outbox, "_ended", return_value=None),
    ):
        yield


@contextlib.contextmanager
def _resends_in_reverse() -> Iterator[None]:
    with mock.patch.object(waiting, "reversed", iter, create=True):
        yield


BUGS: dict[str, Bug] = {
    "unsynced": Bug(
        "commits are not synced",
        ("full", "embedded"),
        partial(_replaced, StoreFile, "open", _skips_sync),
    ),
    "early-confirm": Bug(
        "publishes are confirmed before their commit",
        ("full", "node", "embedded"),
        partial(_replaced, EffectRunner, "_commit", _confirms_early),
    ),
    "lost-requeue": Bug(
        "a lost connection requeues two of its deliveries only",
        ("full", "node"),
        partial(_replaced, InFlightLedger, "settle_all", _forgets_at_disconnect),
    ),
    "shared-lease": Bug(
        "a delivery that timed out stays with its consumer",
        ("node",),
        partial(_replaced, InFlightLedger, "expire", _shares_leases),
    ),
    "requeue-order": Bug(
        "requeued messages go to the tail",
        ("full",),
        partial(_replaced, Ready, "restore", _requeues_at_the_tail),
    ),
    "double-end": Bug(
        "a publish that was sent twice ends twice",
        ("full",),
        partial(_replaced, Publication, "succeed", _ends_twice),
    ),
    "resend-order": Bug(
        "unconfirmed publishes are sent again in reverse",
        ("full",),
        _resends_in_reverse,
    ),
    "overtaking": Bug(
        "a publish that overtakes others stays where it was as well",
        ("full",),
        partial(_replaced, WaitingLine, "put_first", _overtakes_in_two_places),
    ),
    "lost-settle": Bug(
        "a write forgets all settlements but its first",
        ("full",),
        partial(_replaced, Batch, "add", _drops_a_settlement),
    ),
    "early-ack-outbox": Bug(
        "the outbox forgets what it has sent before it is confirmed",
        ("embedded",),
        _outbox_acks_first,
    ),
    "early-ack-shovel": Bug(
        "a shovel acks before its copy is confirmed",
        ("embedded",),
        partial(_replaced, Shovel, "_move", _acks_first),
    ),
    "early-remember": Bug(
        "a message is remembered as handled before its handler has ended",
        ("embedded",),
        partial(_replaced, Deduplication, "begin", _remembers_early),
    ),
    "short-batch": Bug(
        "a batch acks what its handler did not get",
        ("embedded",),
        partial(_replaced, Batches, "__init__", _handles_the_first_only),
    ),
}
