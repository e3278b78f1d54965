"""The running broker: an engine, its store and its clock, in the current event loop.

Commands are carried out at once by `engine`; what they bring about is carried out by `_drain`, in
order, from the event loop and never from inside a command. So a callback may give commands of its
own (ack in `on_delivery`) without recursion, and one turn of the loop carries a whole batch, cut
at `_BATCH` so that publishers and consumers share the loop fairly.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from broker_client.core.effects import (
    CancelConsumer,
    CloseChannel,
    Confirm,
    Deliver,
    Effect,
    MessageTimedOut,
    Return,
)
from broker_client.core.engine import Engine
from broker_client.core.observer import Observer
from broker_client.core.queue import ON_DISK
from broker_client.core.records import RECORDS, Record
from broker_client.core.scan import ScanSettings
from broker_client.core.settings import EngineSettings
from broker_client.core.snapshots import QueueStats
from broker_client.errors import BrokerClosedError, StoreError
from broker_client.events.log import EventLog
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.node.control import NodeControl
from broker_client.node.scan_loop import Scanner
from broker_client.runtime.clock import Clock, SystemClock
from broker_client.store.base import Store
from broker_client.store.memory import MemoryStore

log = logging.getLogger("broker_client.node")

_BATCH = 500  # effects carried out in one turn of the event loop


class Receiver(Protocol):
    """The far end of one channel: what a transport or the server gives to the node."""

    def deliver(self, delivery: Delivery) -> None: ...

    def confirm(self, first: int, last: int, acked: bool) -> None: ...

    def returned(self, returned: Returned) -> None: ...

    def cancelled(self, consumer_tag: str) -> None: ...

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None: ...

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the channel."""
        ...


class ConnectionReceiver(Protocol):
    """The far end of one connection."""

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the connection; the receiver sees to its channels."""
        ...


@dataclass(frozen=True, slots=True)
class NodeStats:
    """A node as it is now."""

    name: str
    connections: int
    channels: int
    late_settles: int
    """Settlements ignored since their delivery had timed out before."""
    queues: tuple[QueueStats, ...]


class Node(NodeControl):
    """Runs an engine. Made and used inside one event loop."""

    def __init__(
        self,
        name: str = "",
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        scan: ScanSettings | None = None,
        event_log: EventLog | None = None,
    ) -> None:
        """
        Args:
            name: for logs and `repr`.
            store: keeps persistent messages; by default nothing is kept.
            clock: where `now` comes from.
            settings: limits of the engine; `keep_records` follows the store.
            scan: how to look for what is due.
            event_log: where to write what happens to each message; closed with the node.
        """
        self.name = name
        self.store: Store = store or MemoryStore()
        """Where its messages are kept."""
        self._clock = clock or SystemClock()
        self.engine = Engine(
            replace(settings or EngineSettings(), keep_records=self.store.keeps),
            new_token=secrets.token_urlsafe,
        )
        if self.store.keeps:
            self.engine.read_from(self)
        self._event_log = event_log
        self._observer = None if event_log is None else Observer(event_log.lines)
        self.engine.observer = self._observer
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[int, Receiver] = {}
        self._connections: dict[int, ConnectionReceiver] = {}
        self._backlog: deque[Effect | Callable[[], None]] = deque()
        self._unsafe = False  # records were written since the last commit was asked for
        self._held: list[Confirm | Callable[[], None]] = []
        self._runs: dict[int, int] = {}  # channel -> place in _held of its latest confirm
        self._commits = 0
        self._waiting_for_room: list[Callable[[], None]] = []
        self._scheduled = False
        self._scanner = Scanner(self.engine, self._clock, scan or ScanSettings(), self.wake)
        self._closing = self._closed = False
        self._failure: StoreError | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "failed" if self._failure else "open"
        return (
            f"<Node {self.name!r} {state} connections={self.engine.connection_count} "
            f"channels={self.engine.channel_count} backlog={len(self._backlog)}>"
        )

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def accepts(self) -> bool:
        """False once it is closing, or has failed."""
        return not self._closing and not self._closed and self._failure is None

    @property
    def keeps(self) -> bool:
        """True where persistent messages outlive the node."""
        return self.store.keeps

    @property
    def is_behind(self) -> bool:
        """True while publishers had better wait for `settled`: the disk does not keep up."""
        return self.store.is_behind

    @property
    def failure(self) -> StoreError | None:
        """Why the node has stopped by itself, if it has."""
        return self._failure

    async def recover(self) -> None:
        """Open the store and put back what it kept. To be called once, before all else.

        Raises:
            StoreError: the store cannot be used; the node then is of no use either.
        """
        await self.store.start(self.engine)
        self.engine.restored(self.now())
        self.tick()

    def load(self, record_ids: Sequence[int]) -> Sequence[Outgoing]:
        """Read messages for the engine.

        Where that fails the node is at its end. The engine goes on with empty messages, none of
        which will be delivered or kept: nothing is carried out after a failure.
        """
        if self._failure is None:
            try:
                return self.store.load(record_ids)
            except StoreError as error:
                if self._note_failure(error):
                    self._loop.call_soon(self._stop_failed)  # this is the midst of a command
        return [ON_DISK] * len(record_ids)

    def now(self) -> float:
        """The node's time, in seconds since the epoch."""
        return self._clock.now()

    def stats(self) -> NodeStats:
        """A snapshot."""
        engine = self.engine
        return NodeStats(
            name=self.name,
            connections=engine.connection_count,
            channels=engine.channel_count,
            late_settles=engine.late_settles,
            queues=engine.stats(self.now()),
        )

    # ---------------------------------------------------------------- connections, channels

    def open_connection(self, vhost: str, receiver: ConnectionReceiver) -> int:
        """A new connection to `vhost`, which comes into being with the first.

        Raises:
            BrokerClosedError: the node is closed.
            StoreError: its store has failed.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # it is raised at every attempt to connect
        if self._closed:
            raise BrokerClosedError(f"node {self.name!r}")
        connection = self.engine.open_connection(vhost)
        self._connections[connection] = receiver
        return connection

    def close_connection(self, connection: int) -> None:
        """Requeue what it had in flight, at once; its receiver hears no more."""
        self._connections.pop(connection, None)
        self.engine.close_connection(connection, self.now())
        self.wake()

    def open_channel(self, connection: int, receiver: Receiver, *, confirm: bool) -> int:
        """A new channel whose effects go to `receiver`."""
        channel = self.engine.open_channel(connection, confirm=confirm)
        self._receivers[channel] = receiver
        return channel

    def close_channel(self, channel: int) -> None:
        """Requeue what it had in flight, at once; its receiver hears no more."""
        self._receivers.pop(channel, None)
        self.engine.close_channel(channel, self.now())
        self.wake()

    # ---------------------------------------------------------------- running

    def wake(self) -> None:
        """Carry out, soon, what the commands given to `engine` bring about."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def call_after_effects(self, then: Callable[[], None]) -> None:
        """Call `then` once what is due now has been carried out, confirms included."""
        self._take_effects()
        self._backlog.append(then)
        self.wake()

    def call_when_room(self, then: Callable[[], None]) -> None:
        """Call `then`, from the event loop, once the engine is not short of memory."""
        self._waiting_for_room.append(then)

    async def settled(self) -> None:
        """Wait until what is due now has been carried out, confirms included."""
        if self._closed:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self.call_after_effects(lambda: None if done.done() else done.set_result(None))
        await done

    def tick(self) -> None:
        """Do what is due by the clock; the node's timer calls it, and so may a test."""
        self.engine.tick(self.now())
        self.wake()

    async def close(self) -> None:
        """Finish what is due, close every connection (320), then the store. Harmless twice."""
        self._closing = True
        if not self._closed:
            await self.settled()
        if not self._closed:
            self._end()
            if self._event_log is not None:
                self._event_log.end()
        await self.store.close()
        if self._event_log is not None:
            await asyncio.to_thread(self._event_log.close)

    def stop(self) -> None:
        """Close every connection (320) and do nothing more, at once. Harmless twice."""
        if self._closed:
            return
        self._end()
        self.store.release()
        if self._event_log is not None:
            self._event_log.end()

    def _end(self) -> None:
        self._close_connections(320, "CONNECTION_FORCED - broker forced connection closure")
        self._take_effects()  # what the end itself brought about is kept too
        self._closed = True
        self._scanner.stop()
        waiting = [item for item in self._backlog if callable(item)]
        self._backlog.clear()
        self._receivers.clear()
        self._send(list(waiting))
        self._log_events()

    def _drain(self) -> None:
        self._scheduled = False
        backlog = self._backlog
        self._take_effects()
        try:
            for _ in range(min(_BATCH, len(backlog))):
                self._carry_out(backlog.popleft())
        except BaseException:
            self.wake()  # a receiver that ends the loop, or itself, does not end the node
            raise
        self._release()
        self._log_events()
        if self._waiting_for_room and not self.engine.is_short_of_memory:
            waiting, self._waiting_for_room = self._waiting_for_room, []
            for then in waiting:
                self._loop.call_soon(then)
        if len(backlog) < _BATCH and self.engine.is_unfinished:
            self.engine.proceed(self.now())
        if backlog or self.engine.has_effects:
            self.wake()
        if not self._closed:
            self._scanner.schedule()

    def _take_effects(self) -> None:
        """Give records to the store, at once and in order; the rest waits in the backlog."""
        effects = self.engine.take_effects()
        if self._failure is not None:
            return
        if self.store.keeps:
            records: list[Record] = [e for e in effects if type(e) in RECORDS]  # type: ignore[misc]
            if records:
                self.store.write(records)
                self._unsafe = True
                effects = [e for e in effects if type(e) not in RECORDS]
        self._backlog.extend(effects)

    def _carry_out(self, effect: Effect | Callable[[], None]) -> None:
        try:
            if isinstance(effect, Deliver):
                receiver = self._receivers.get(effect.channel)
                if receiver is not None:
                    receiver.deliver(effect.delivery)
            elif isinstance(effect, Confirm):
                self._hold(effect)
            elif callable(effect):
                self._held.append(effect)
            else:
                self._notify(effect)
        except Exception:
            log.exception("%r: a receiver failed at %s", self, type(effect).__name__)

    def _notify(self, effect: Effect) -> None:
        assert isinstance(effect, Return | CancelConsumer | MessageTimedOut | CloseChannel)
        receiver = self._receivers.get(effect.channel)
        if receiver is None:
            return
        if isinstance(effect, Return):
            receiver.returned(effect.returned)
        elif isinstance(effect, CancelConsumer):
            receiver.cancelled(effect.consumer_tag)
        elif isinstance(effect, MessageTimedOut):
            receiver.timed_out(effect.consumer_tag, effect.delivery_tag)
        else:
            del self._receivers[effect.channel]
            receiver.closed(effect.reply_code, effect.reply_text)

    # ---------------------------------------------------------------- confirms

    def _hold(self, confirm: Confirm) -> None:
        """Keep a confirm until the batch is written, joined to the run before it if it fits."""
        at = self._runs.get(confirm.channel)
        if at is not None:
            run = self._held[at]
            assert isinstance(run, Confirm), "_runs holds the places of confirms only"
            if run.acked is confirm.acked and run.last + 1 == confirm.first:
                self._held[at] = Confirm(run.channel, run.first, confirm.last, run.acked)
                return
        self._runs[confirm.channel] = len(self._held)
        self._held.append(confirm)

    def _release(self) -> None:
        """Have the records committed; send the confirms now if all before them is safe."""
        unsafe, self._unsafe = self._unsafe, False
        held, self._held = self._held, []
        self._runs.clear()
        if unsafe or (held and self._commits):
            self._commits += 1
            self.store.commit(partial(self._committed, held))
        elif held:
            self._send(held)

    def _committed(
        self, held: list[Confirm | Callable[[], None]], error: StoreError | None
    ) -> None:
        self._commits -= 1
        if error is None and self._failure is None:
            self._send(held)
            return
        if error is not None and self._note_failure(error):
            self._stop_failed()
        self._send([item for item in held if not isinstance(item, Confirm)])

    def _note_failure(self, error: StoreError) -> bool:
        """From now on nothing is delivered, confirmed or kept; False when that was so already."""
        if self._failure is not None:
            return False
        self._failure = error
        log.critical("%r stops: %s", self, error)
        self._backlog = deque(i for i in self._backlog if not isinstance(i, Deliver | Confirm))
        self._held = [item for item in self._held if not isinstance(item, Confirm)]
        self._runs.clear()
        return True

    def _stop_failed(self) -> None:
        """Nobody may go on in the belief that it works."""
        self._close_connections(541, f"INTERNAL_ERROR - {self._failure}")

    def _send(self, held: list[Confirm | Callable[[], None]]) -> None:
        for item in held:
            try:
                if not isinstance(item, Confirm):
                    item()
                elif (receiver := self._receivers.get(item.channel)) is not None:
                    if self._observer is not None:
                        self._observer.confirmed(*item, self.now())
                    receiver.confirm(item.first, item.last, item.acked)
            except Exception:
                log.exception("%r: a receiver failed at %s", self, item)

    def _log_events(self) -> None:
        if self._observer is not None and self._event_log is not None:
            now = self.now()
            lines = self._observer.take(now)
            if lines:
                self._event_log.record_lines(lines, now)

    # ---------------------------------------------------------------- the end

    def _close_connections(self, reply_code: int, reply_text: str) -> None:
        for connection, receiver in list(self._connections.items()):
            self.close_connection(connection)
            try:
                receiver.closed(reply_code, reply_text)
            except Exception:
                log.exception("%r: a receiver failed at its close", self)
