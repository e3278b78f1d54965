"""A whole node in a world without time: real engine, real node, a disk that may fail or lie dead.

Whoever drives it says what happens next, down to when the event loop takes a turn, when a commit
ends, and after how many effects the process dies. Meanwhile the world keeps its own books of what
it was promised, and `check` compares them with what is there:

* confirmed and not settled: it is in its queue, or among the dead letters;
* settled, and that is safe: it is not there;
* nothing is in a queue twice, and nothing that was never published;
* deliveries that are safe are counted, and who was never moved has kept its place.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from broker_client.core.exchange import Destination
from broker_client.core.queue import ON_DISK
from broker_client.core.records import message_number
from broker_client.core.settings import EngineSettings
from broker_client.errors import ReplyError, StaleDeliveryError, StoreError
from broker_client.message import PERSISTENT, TRANSIENT, Delivery, Outgoing, Properties, Returned
from broker_client.node.node import Node
from tests.support.builders import command_of
from tests.support.clock import ManualClock
from tests.support.faulty_store import DiskState, FaultyStore

DEAD = "dead"
_TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
QUEUES: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {},
    "rejecting": dict(_TO_DEAD),
    "short": {"x-max-length": 3, **_TO_DEAD},
    "timed": {"x-message-ttl": 4000, **_TO_DEAD},
    "limited": {"x-delivery-limit": 2, **_TO_DEAD},
    "ranked": {"x-max-priority": 2, **_TO_DEAD},
    DEAD: {},
}
SINGLE = [name for name in QUEUES if name != DEAD]
FANOUT = ("one", "two")
IN_ORDER = ("one", "two", "rejecting")
"""Queues in which nothing changes places but by a settlement."""


_AFTER_FAILURE = {"turn", "end_commit", "crash", "die_soon"}


class Died(BaseException):
    """The process ends here."""


class BrokenPromiseError(BaseException):
    """Not an Exception: the node would log it as the fault of a receiver, and go on."""


def promise(kept: object, *told: object) -> None:
    if not kept:
        raise BrokenPromiseError(*told)


class SimLoop:
    """As much of an event loop as a node needs, turned by hand."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._soon: list[Handle] = []
        self._later: list[Handle] = []

    def time(self) -> float:
        return self._clock.now()

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> Handle:
        handle = Handle(0.0, call, arguments)
        self._soon.append(handle)
        return handle

    def call_later(self, delay: float, call: Callable[..., object], *arguments: Any) -> Handle:
        handle = Handle(self._clock.now() + delay, call, arguments)
        self._later.append(handle)
        return handle

    def turn(self) -> bool:
        """Run what is ready now; False when nothing was."""
        now = self._clock.now()
        due = [handle for handle in self._later if handle.at <= now]
        self._later = [handle for handle in self._later if handle.at > now]
        ready, self._soon = self._soon + due, []
        for handle in ready:
            handle.run()
        return bool(ready)


class Handle:
    def __init__(self, at: float, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.at, self._call, self._arguments = at, call, arguments
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def run(self) -> None:
        if not self._cancelled:
            self._call(*self._arguments)


def _unforgiving(method: Callable[..., None]) -> Callable[..., None]:
    """Have what goes wrong in here end the run."""

    @functools.wraps(method)
    def call(*arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:
            raise BrokenPromiseError(f"{method.__name__}: {error!r}") from error

    return call


class WorldReceiver:
    """Receiver of one channel and of its connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.published: list[tuple[bytes, tuple[str, ...]]] = []
        self.channel = 0

    @_unforgiving
    def deliver(self, delivery: Delivery) -> None:
        self.world.point("deliver")
        queue = delivery.consumer_tag.partition("#")[0]
        self.world.delivered(self.channel, queue, delivery)

    @_unforgiving
    def confirm(self, first: int, last: int, acked: bool) -> None:
        self.world.point("confirm")
        for body, queues in self.published[first - 1 : last]:
            self.world.confirmed(body, queues, acked)

    @_unforgiving
    def returned(self, returned: Returned) -> None:
        self.world.point("returned")

    @_unforgiving
    def cancelled(self, consumer_tag: str) -> None:
        self.world.point("cancelled")

    @_unforgiving
    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None:
        self.world.point("timed out")
        self.world.held.pop((self.channel, delivery_tag), None)

    @_unforgiving
    def closed(self, reply_code: int, reply_text: str) -> None:
        self.world.point("closed")

    def blocked(self, reason: str) -> None: ...

    def unblocked(self) -> None: ...


class _DiskView:
    """What the disk holds, by place."""

    def __init__(self, disk: DiskState) -> None:
        self.changes = disk.changes
        self.held = list(disk.held.values())
        self.places = {(held.queue, held.message.body) for held in self.held}

    def bodies(self, queue: str) -> list[bytes]:
        """What `queue` holds, by position."""
        held = [each for each in self.held if each.queue == queue]
        held.sort(key=lambda each: each.entry.position)
        return [each.message.body for each in held]


class World:
    """One node over its lives, and what it has promised in them."""

    def __init__(self, *, queues: Collection[str] = QUEUES, memory_limit: int = 1 << 20) -> None:
        """
        Args:
            queues: names of those of `QUEUES` that there are.
            memory_limit: bytes of bodies in memory.
        """
        self.queues = [name for name in QUEUES if name in queues]
        self.clock = ManualClock()
        self.disk = DiskState()
        self.lives = 0
        self.memory_limit = memory_limit
        self.die_in: int | None = None
        """Points after which the process dies."""
        self.commits_at_death = 0
        """How many of the commits then under way have reached the disk."""
        self.next_body = 0
        self.targets: dict[bytes, tuple[str, ...]] = {}
        self.transient: set[bytes] = set()
        self.promised: set[tuple[str, bytes]] = set()
        """(queue, body) of what was confirmed."""
        self.begun: set[tuple[str, bytes]] = set()
        """Of what may be gone, since somebody has begun to settle it."""
        self.gone: set[tuple[str, bytes]] = set()
        """Of what must be gone."""
        self.attempts: Counter[tuple[str, bytes]] = Counter()
        """The last attempt of each that a consumer got; those arrive in their order."""
        self.got: set[tuple[str, bytes, int]] = set()
        """(queue, body, attempt) of what a get got, which overtakes deliveries on their way."""
        self.safe_attempts: dict[tuple[str, bytes], int] = {}
        self.moved: set[tuple[str, bytes]] = set()
        self._safe_notes = 0
        self._view: _DiskView | None = None
        self._checked: tuple[int, ...] = ()
        self._begin()

    # ---------------------------------------------------------------- life and death

    def point(self, name: str) -> None:
        """A place where the process may die."""
        if self.die_in is not None:
            self.die_in -= 1
            if self.die_in <= 0:
                raise Died(name)

    def _begin(self) -> None:
        self.lives += 1
        self.loop = SimLoop(self.clock)
        self.store = FaultyStore(self.disk, self.point)
        settings = EngineSettings(
            message_timeout=10.0, max_message_timeout=25.0, memory_limit=self.memory_limit
        )
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]
        try:
            self.node = Node("sim", store=self.store, clock=self.clock, settings=settings)
        finally:
            asyncio._set_running_loop(None)
        self.engine = self.node.engine
        self.store.begin(self.engine.restoring)
        self.engine.restoring.finish(self.clock.now())
        self.held: dict[tuple[int, int], tuple[str, bytes]] = {}
        self.tags = 0
        self.receivers: list[WorldReceiver] = []
        self.check()
        self.node.tick()
        for _ in range(3):
            self.open_channel()
        admin = self.receivers[0].channel
        there = self.engine.state.vhosts["/"].queues
        for name in self.queues:
            if name not in there:
                self.engine.topology.declare_queue(
                    admin, name, self.clock.now(), arguments=QUEUES[name]
                )
        for name in FANOUT:
            self.engine.topology.bind(admin, Destination("queue", name), "amq.fanout", "", {})
        self.node.wake()

    def open_channel(self) -> None:
        receiver = WorldReceiver(self)
        connection = self.node.open_connection("/", receiver)
        receiver.channel = self.node.open_channel(connection, receiver, confirm=True)
        self.receivers.append(receiver)

    def crash(self) -> None:
        """Die and start anew."""
        self.die_in = None
        self.disk = self.store.die(commits_made=self.commits_at_death)
        # A delivery that nobody had heard of when it died is no promise.
        self.attempts = Counter(self.safe_attempts)
        self.got.clear()
        self._begin()

    def do(self, step: str, *arguments: Any, **options: Any) -> None:
        """Call a method of this world as one step of a run, and check the books after it.

        After its store has failed, a node can only end: any other step is a crash then.

        Raises:
            BrokenPromiseError: the node did other than it had said.
        """
        if self.node.failure is not None and step not in _AFTER_FAILURE:
            self.guarded(self.crash)
        else:
            self.guarded(functools.partial(getattr(self, step), *arguments, **options))
        self.check()

    def end(self) -> None:
        """Crash, and let all happen that is due then."""
        self.guarded(self.crash)
        self.settle_down()
        self.check()

    def die_soon(self, points: int, commits: int) -> None:
        """Die after so many points; so many of the commits under way have reached the disk."""
        self.die_in, self.commits_at_death = points, commits

    def guarded(self, action: Callable[[], object]) -> None:
        """Do `action`; if the process dies in it, start anew."""
        try:
            action()
        except Died:
            self.crash()

    # ---------------------------------------------------------------- what clients do

    def command(self, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            return command_of(self.engine, name)(*arguments, **options)
        except (ReplyError, StaleDeliveryError):
            return None
        finally:
            self.node.wake()

    def after(self, then: Callable[[], object]) -> None:
        """Do `then` once all that was done so far is safe; never, if it is not."""

        def reached() -> None:
            if self.node.failure is None:
                then()

        self.node.call_after_effects(reached)

    def publish(self, at: int, queue: str | None, *, persistent: bool, priority: int) -> None:
        """To one queue, or to both of the fanout exchange."""
        self.next_body += 1
        body = b"%d" % self.next_body
        queues = FANOUT if queue is None else (queue,)
        self.targets[body] = queues
        if not persistent:
            self.transient.add(body)
        message = Outgoing(
            "amq.fanout" if queue is None else "",
            queue or "",
            body,
            Properties(
                delivery_mode=PERSISTENT if persistent else TRANSIENT,
                priority=priority,
                headers={"n": self.next_body},
            ),
        )
        self.receivers[at].published.append((body, queues))
        self.command("publish", self.receivers[at].channel, message, self.clock.now())

    def consume(self, at: int, queue: str, prefetch: int) -> None:
        self.tags += 1
        channel = self.receivers[at].channel
        self.engine.consuming.qos(channel, prefetch)
        self.command(
            "consume", channel, queue, self.clock.now(), consumer_tag=f"{queue}#{self.tags}"
        )

    def cancel(self, at: int) -> None:
        channel = self.receivers[at].channel
        for tag in list(self.engine.state.channels[channel].consumers)[:1]:
            self.command("cancel", channel, tag, self.clock.now())

    def get(self, at: int, queue: str, *, no_ack: bool) -> None:
        got = self.command(
            "get", self.receivers[at].channel, queue, self.clock.now(), no_ack=no_ack
        )
        if got is not None and self.node.failure is None:
            delivery = got[0]
            self.delivered(self.receivers[at].channel, queue, delivery, by_get=True)
            if no_ack:
                del self.held[self.receivers[at].channel, delivery.delivery_tag]
                self._settle(queue, delivery.body, dead_letter=False)

    def _pick(self, which: int) -> tuple[int, int, str, bytes] | None:
        if not self.held or self.node.failure is not None:
            return None
        key = list(self.held)[which % len(self.held)]
        channel, tag = key
        queue, body = self.held.pop(key)
        if tag not in self.engine.state.channels[channel].ledger:
            return None  # timed out, and the notice is on its way
        return channel, tag, queue, body

    def ack(self, which: int) -> None:
        if picked := self._pick(which):
            channel, tag, queue, body = picked
            self.command("ack", channel, tag, self.clock.now())
            self._settle(queue, body, dead_letter=False)

    def reject(self, which: int) -> None:
        if picked := self._pick(which):
            channel, tag, queue, body = picked
            self.command("nack", channel, tag, self.clock.now(), requeue=False)
            self._settle(queue, body, dead_letter="x-dead-letter-exchange" in QUEUES[queue])

    def requeue(self, which: int, delay: float | None) -> None:
        if picked := self._pick(which):
            channel, tag, queue, body = picked
            if delay is not None:
                self.moved.add((queue, body))
            self.command("nack", channel, tag, self.clock.now(), delay=delay)

    def touch(self, which: int) -> None:
        if self.held:
            channel, tag = list(self.held)[which % len(self.held)]
            self.command("touch", channel, tag, self.clock.now())

    def close_channel(self, at: int) -> None:
        """With all that is in flight on it; another takes its place."""
        if self.node.failure is not None:
            return
        channel = self.receivers[at].channel
        self.node.close_channel(channel)
        self.held = {key: held for key, held in self.held.items() if key[0] != channel}
        del self.receivers[at]
        self.open_channel()

    def purge(self, queue: str) -> None:
        fetch = self.engine.state.paging.fetch
        ready = [fetch(entry).body for entry in self._queue(queue).ready]
        self.command("purge_queue", self.receivers[0].channel, queue)
        for body in ready:
            self._settle(queue, body, dead_letter=False)

    def remake(self, queue: str) -> None:
        """Delete a queue and declare it again: nothing may come back."""
        admin = self.receivers[0].channel
        self.command("delete_queue", admin, queue)
        for body, queues in self.targets.items():
            if queue in queues:
                self._settle(queue, body, dead_letter=False)
        now = self.clock.now()
        self.command("declare_queue", admin, queue, now, arguments=QUEUES[queue])
        if queue in FANOUT:
            self.command("bind", admin, Destination("queue", queue), "amq.fanout", "", {})

    def _settle(self, queue: str, body: bytes, *, dead_letter: bool) -> None:
        if not dead_letter:
            self.begun.add((queue, body))
        self.after(lambda: self.gone.add((queue, body)))

    # ---------------------------------------------------------------- what else happens

    def advance(self, seconds: float) -> None:
        for channel in self.engine.state.channels.values():
            for entry in channel.ledger.entries():
                self.moved.add((entry.queue.name, entry.message.body))  # it may time out
        self.clock.advance(seconds)
        self.node.tick()

    def turn(self) -> None:
        self.loop.turn()

    def end_commit(self, *, fail: bool = False) -> None:
        if self.store.commits_under_way:
            self.store.end_commit(StoreError("sim.db", "disk full") if fail else None)

    def note_attempts(self) -> None:
        """From when this is safe, a crash may not forget these deliveries."""
        seen = self.attempts.copy()
        for queue, body, attempt in self.got:
            seen[queue, body] = max(seen[queue, body], attempt)

        def safe() -> None:
            self.safe_attempts.update(seen)
            self._safe_notes += 1

        self.after(safe)

    def settle_down(self) -> None:
        """Let everything happen that is due now."""
        for _ in range(10_000):
            if not self.loop.turn() and not self.store.commits_under_way:
                return
            while self.store.commits_under_way:
                self.store.end_commit()
        raise AssertionError("the node does not come to rest")

    # ---------------------------------------------------------------- what the node says

    def delivered(
        self, channel: int, queue: str, delivery: Delivery, *, by_get: bool = False
    ) -> None:
        promise(self.node.failure is None, "delivered after the store had failed")
        body = delivery.body
        promise((queue, body) not in self.gone, f"{body!r} came back to {queue!r}")
        promise(body in self.targets, f"{body!r} was never published")
        number = (delivery.properties.headers or {}).get("n")
        promise(number == int(body), f"{body!r} has the properties of {number}")
        self.held[channel, delivery.delivery_tag] = queue, body
        assert delivery.attempts is not None
        self._attempted(queue, body, delivery.attempts, by_get=by_get)
        promise(delivery.redelivered is (delivery.attempts > 1), delivery)

    def _attempted(self, queue: str, body: bytes, attempt: int, *, by_get: bool) -> None:
        """Each delivery of a message is an attempt of its own, later than those before it."""
        last = self.attempts[queue, body]
        promise(attempt > last, (queue, body, attempt, last))
        promise((queue, body, attempt) not in self.got, (queue, body, attempt))
        if by_get:
            self.got.add((queue, body, attempt))
        else:
            self.attempts[queue, body] = attempt

    def confirmed(self, body: bytes, queues: tuple[str, ...], acked: bool) -> None:
        promise(self.node.failure is None, "confirmed after the store had failed")
        if acked and body not in self.transient:
            for queue in queues:
                self.promised.add((queue, body))
                promise(self._is_safe(queue, body), f"{body!r} confirmed but not in {queue!r}")

    # ---------------------------------------------------------------- the books

    def _is_safe(self, queue: str, body: bytes) -> bool:
        if (queue, body) in self.begun or (DEAD, body) in self.begun:
            return True
        disk = self._disk_view()
        return (queue, body) in disk.places or (
            "x-dead-letter-exchange" in QUEUES[queue] and (DEAD, body) in disk.places
        )

    def _disk_view(self) -> _DiskView:
        """What is on disk, computed anew when it has changed."""
        if self._view is None or self._view.changes != self.disk.changes:
            self._view = _DiskView(self.disk)
        return self._view

    def check(self) -> None:
        """Compare the books with what is there, in memory and on disk."""
        self.engine.check_conservation()
        entries = self._entries()
        promise(len(set(map(id, entries))) == len(entries), "two places hold one entry")
        self._check_disk()
        self._check_memory(entries)
        if self.store.is_at_rest and not self.engine.has_effects:
            self._check_disk_is_memory(entries)

    def _check_disk(self) -> None:
        """Skipped while neither the disk nor the books have changed since it was last right."""
        books = self.disk.changes, len(self.promised), len(self.gone), self._safe_notes
        if books == self._checked:
            return
        disk = self._disk_view()
        for queue, body in self.promised - disk.places:
            promise(self._is_safe(queue, body), f"{body!r} is lost from {queue!r}")
        promise(len(disk.places) == len(disk.held), "a queue holds something twice", disk.held)
        for queue, body in disk.places & self.gone:
            promise(False, f"{body!r} is back in {queue!r}")
        for held in disk.held:
            body = held.message.body
            promise(body not in self.transient, f"{body!r} is transient, and was kept")
            least = self.safe_attempts.get((held.queue, body), 0)
            promise(held.entry.attempts >= least or held.queue == DEAD, held)
        for name in IN_ORDER:
            kept = [int(body) for body in disk.bodies(name) if (name, body) not in self.moved]
            promise(kept == sorted(kept), f"{name!r} is out of order: {kept}")
        self._checked = books

    def _check_disk_is_memory(self, entries: list[Any]) -> None:
        in_memory = {}
        spilled = set()
        for entry in entries:
            if entry.record_id < 0:
                spilled.add(message_number(entry.record_id))
            elif entry.record_id and not entry.queue.deleted:
                due_at = entry.queue.deferred.due_at(entry)
                in_memory[entry.record_id] = entry.position, entry.attempts, due_at
        on_disk = {
            id: (held.entry.position, held.entry.attempts, held.entry.due_at)
            for id, held in self.disk.held.items()
        }
        promise(in_memory == on_disk, "memory and disk differ", in_memory, on_disk)
        promise(spilled == set(self.disk.spilled), "what was spilled stays", self.disk.spilled)

    def _check_memory(self, entries: list[Any]) -> None:
        """The bodies in memory are counted right."""
        paging = self.engine.state.paging
        resident = sum(len(entry.message.body) for entry in entries if entry.message is not ON_DISK)
        promise(paging.resident_bytes == resident, "bodies in memory", paging.resident_bytes)

    def _entries(self) -> list[Any]:
        found: list[Any] = []
        for vhost in self.engine.state.vhosts.values():
            for queue in vhost.queues.values():
                if queue.ready:
                    found += queue.ready
                if queue.deferred:
                    found += queue.deferred.entries()
        for channel in self.engine.state.channels.values():
            if channel.ledger:
                found += channel.ledger.entries()
        return found

    def _queue(self, name: str) -> Any:
        return self.engine.state.vhosts["/"].queues[name]
