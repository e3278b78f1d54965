"""Carries out an engine's effects: records to the store, deliveries and confirms to receivers.

Commands are carried out at once by the engine; their effects are carried out here, in order, from
the event loop and never from inside a command. So a receiver may give commands of its own (ack in
`deliver`) without recursion, and one turn of the loop carries a whole batch, cut at `_BATCH` so
that publishers and consumers share the loop fairly.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from broker_client.errors import ReplyError, StoreError
from broker_client.events.log import EventLog
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.node.scan_loop import Scanner
from broker_client.runtime.clock import Clock
from broker_client.store.base import Store

log: logging.Logger = logging.getLogger("broker_client.node")

_BATCH = 250  # effects carried out in one turn of the event loop
_REST = 0.0002  # seconds without effects after which new ones need not wait for others
_UNAWAITED_COMMIT = 0.01  # seconds in which records gather that nobody waits for


class Receiver(Protocol):
    """The client side of a channel, implemented by a transport or a server."""

    def deliver(self, delivery: Delivery) -> None: ...

    def confirm(self, first: int, last: int, acked: bool) -> None: ...

    def returned(self, returned: Returned) -> None: ...

    def cancelled(self, consumer_tag: str) -> None: ...

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None: ...

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the channel."""
        ...


class ConnectionReceiver(Protocol):
    """The client side of a connection."""

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the connection; the receiver sees to its channels."""
        ...

    def blocked(self, reason: str) -> None:
        """The node is short of memory or disk: do not publish until `unblocked`."""
        ...

    def unblocked(self) -> None: ...


class EffectRunner:
    """Runs one engine, and owns everything that its effects need."""

    def __init__(
        self,
        owner: object,
        store: Store,
        clock: Clock,
        settings: EngineSettings,
        scan: ScanSettings,
        event_log: EventLog | None,
    ) -> None:
        """
        Args:
            owner: named in logs.
            store: takes the records.
            clock: where `now` comes from.
            settings: of the engine; `keep_records` follows the store.
            scan: how to look for what is due.
            event_log: where to write what happens to each message.
        """
        self._owner, self._store, self._clock = owner, store, clock
        self._event_log = event_log
        self._observer = None if event_log is None else Observer()
        self.engine: Engine = Engine(
            replace(settings, keep_records=store.keeps),
            new_token=secrets.token_urlsafe,
            observer=self._observer,
            source=self if store.keeps else None,
        )
        self.scanner: Scanner = Scanner(self.engine, clock, scan, self.wake)
        self.receivers: dict[int, Receiver] = {}
        """Of each channel."""
        self.connections: dict[int, ConnectionReceiver] = {}
        self.failure: StoreError | None = None
        """Why the store failed, if it has: nothing is delivered, confirmed or kept any more."""
        self.is_closed: bool = False
        self._loop = asyncio.get_running_loop()
        self._backlog: deque[Effect | Callable[[], None]] = deque()
        self._unsafe = False  # records were written since the last commit was asked for
        self._later: asyncio.TimerHandle | None = None
        """Of a commit that nobody waits for."""
        self._held: list[Confirm | Callable[[], None]] = []
        self._commits = 0
        self._behind_work: deque[tuple[int, Callable[[], None]]] = deque()
        """To be called once so many long works have ended."""
        self._blocked: dict[ConnectionReceiver, None] = {}
        self._alarms: set[str] = set()
        """Resources that are short, besides the memory that the engine watches."""
        self.is_scheduled: bool = False
        """True while the effects are about to be carried out."""
        self._next_run: asyncio.Handle
        self._is_running = False
        self._ran = 0.0  # when effects were carried out last, in the event loop's time
        self._after_run: list[Callable[[], None]] = []

    @property
    def backlog(self) -> int:
        """Effects taken from the engine and not yet carried out."""
        return len(self._backlog)

    # ---------------------------------------------------------------- running

    def wake(self) -> None:
        """Schedule the effects of commands given to `engine`."""
        if not self.is_scheduled and not self.is_closed:
            self.is_scheduled = True
            self._next_run = self._loop.call_soon(self._run)

    def carry_out(self) -> None:
        """Carry out the effects now, after a rest; else in the next turn of the event loop.

        Call it from the event loop, behind all that a client has sent. With little to do, a
        delivery need not wait for that turn; with much, a turn serves many clients.
        """
        if self.is_scheduled and not self._is_running and self._loop.time() - self._ran > _REST:
            self._next_run.cancel()
            self._run()

    def has_return_for(self, channel: int) -> bool:
        """True while a basic.return for `channel` is still to be carried out."""
        self._take_effects()
        return any(type(e) is Return and e.channel == channel for e in self._backlog)

    def call_after_effects(self, then: Callable[[], None]) -> None:
        """Call `then` once the present effects are carried out, including confirms, and the long
        work that was begun is done."""
        self._take_effects()
        work = self.engine.long_work
        if work.is_pending or self._behind_work:  # else it would be before one that waits
            self._behind_work.append((work.begun, then))
        else:
            self._backlog.append(then)
        self.wake()

    def call_after_run(self, then: Callable[[], None]) -> None:
        """Call `then` at the end of the effects that are being carried out, before their records
        go to the disk; in the next turn of the event loop where none are.

        For what a receiver does once for many effects. When a commit begins, its thread and the
        event loop wait for each other: what was delivered had better be sent before.
        """
        if self._is_running:
            self._after_run.append(then)
        else:
            self._loop.call_soon(then)

    async def drain(self) -> None:
        """Wait until the present effects are carried out and committed, including confirms."""
        if self.is_closed:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self.call_after_effects(lambda: None if done.done() else done.set_result(None))
        await done

    def end(self) -> None:
        """Close every connection (320) and carry out nothing more, at once."""
        self.close_connections(320, "CONNECTION_FORCED - broker forced connection closure")
        self._take_effects()  # what the end itself brought about is kept too
        self.is_closed = True
        if self._later is not None:
            self._later.cancel()  # the store commits as it closes
        self.scanner.stop()
        waiting = [item for item in self._backlog if callable(item)]
        waiting += [then for _, then in self._behind_work]
        self._backlog.clear()
        self._behind_work.clear()
        self.receivers.clear()
        self._send(list(waiting))
        self._log_events()

    def _run(self) -> None:
        self.is_scheduled, self._is_running = False, True
        self._ran = self._loop.time()
        backlog, engine = self._backlog, self.engine
        work = engine.long_work
        self._take_effects()
        while self._behind_work and self._behind_work[0][0] <= work.ended:
            backlog.append(self._behind_work.popleft()[1])
        try:
            for _ in range(min(_BATCH, len(backlog))):
                effect = backlog.popleft()
                try:
                    if type(effect) is Deliver:
                        receiver = self.receivers.get(effect.channel)
                        if receiver is not None:
                            receiver.deliver(effect.delivery)
                    elif isinstance(effect, Confirm) or callable(effect):
                        self._held.append(effect)
                    else:
                        self._notify(effect)
                except Exception:
                    log.exception("%r: a receiver failed at %s", self._owner, type(effect).__name__)
        except BaseException:
            self._is_running = False
            self.wake()  # a receiver that ends the loop, or itself, does not end the node
            raise
        if self._unsafe:
            self._call_after_run()
        self._release()
        self._call_after_run()
        self._log_events()
        if self._blocked and not self.is_short:
            self._unblock()
        if len(backlog) < _BATCH and engine.is_unfinished:
            engine.proceed(self._clock.now())
        if work.is_pending:
            work.proceed(self._clock.now())
        if backlog or engine.has_effects or self._behind_work or engine.has_more_to_do:
            self.wake()
        if not self.is_closed:
            self.scanner.schedule()

    def _call_after_run(self) -> None:
        self._is_running = False
        calls, self._after_run = self._after_run, []
        for then in calls:
            try:
                then()
            except Exception:
                log.exception("%r: a receiver failed after its effects", self._owner)

    def _take_effects(self) -> None:
        """Pass records to the store at once, in order; other effects wait in the backlog."""
        effects = self.engine.take_effects()
        if self.failure is not None:
            return
        if self._store.keeps:
            records: list[Record] = [e for e in effects if type(e) in RECORDS]  # type: ignore[misc]
            if records:
                self._store.write(records)
                self._unsafe = True
                effects = [e for e in effects if type(e) not in RECORDS]
        self._backlog.extend(effects)

    def _notify(self, effect: Effect) -> None:
        assert isinstance(effect, Return | CancelConsumer | MessageTimedOut | CloseChannel)
        receiver = self.receivers.get(effect.channel)
        if receiver is None:
            return
        if isinstance(effect, Return):
            receiver.returned(effect.returned)
        elif isinstance(effect, CancelConsumer):
            receiver.cancelled(effect.consumer_tag)
        elif isinstance(effect, MessageTimedOut):
            receiver.timed_out(effect.consumer_tag, effect.delivery_tag)
        else:
            del self.receivers[effect.channel]
            receiver.closed(effect.reply_code, effect.reply_text)

    # ---------------------------------------------------------------- confirms

    def _release(self) -> None:
        """Have the records committed; send the confirms now if all before them is safe.

        Records that nobody waits for, such as those of single acks, are committed many at a time.
        """
        if self._unsafe and not self._held:
            if self._later is None:
                self._later = self._loop.call_later(_UNAWAITED_COMMIT, self._commit_unawaited)
            return
        self._commit()

    def _commit_unawaited(self) -> None:
        self._later = None
        self._commit()

    def _commit(self) -> None:
        unsafe, self._unsafe = self._unsafe, False
        held, self._held = self._held, []
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if unsafe or (held and self._commits):
            self._commits += 1
            self._store.commit(partial(self._committed, held))
        elif held:
            self._send(held)

    def _committed(
        self, held: list[Confirm | Callable[[], None]], error: StoreError | None
    ) -> None:
        self._commits -= 1
        if error is None and self.failure is None:
            self._is_running = True
            self._send(held)
            self._call_after_run()
            return
        if error is not None and self._note_failure(error):
            self._stop_failed()
        self._send([item for item in held if not isinstance(item, Confirm)])

    def _send(self, held: list[Confirm | Callable[[], None]]) -> None:
        for item in held:
            try:
                if not isinstance(item, Confirm):
                    item()
                elif (receiver := self.receivers.get(item.channel)) is not None:
                    if self._observer is not None:
                        self._observer.confirmed(*item, self._clock.now())
                    receiver.confirm(item.first, item.last, item.acked)
            except Exception:
                log.exception("%r: a receiver failed at %s", self._owner, item)

    def _log_events(self) -> None:
        if self._observer is not None and self._event_log is not None:
            events = self._observer.take()
            if events:
                now = self._clock.now()
                self._event_log.record_lines(self._event_log.lines.message_lines(events, now), now)

    # ---------------------------------------------------------------- blocking

    @property
    def is_short(self) -> bool:
        """True while publishers are to be blocked."""
        return self.engine.is_short_of_memory or bool(self._alarms)

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is short, such as `memory` or `disk`."""
        memory = {"memory"} if self.engine.is_short_of_memory else set()
        return tuple(sorted(self._alarms | memory))

    def block_publisher(self, connection: int) -> None:
        """Tell the owner of `connection`, once, until no resource is short any more."""
        receiver = self.connections.get(connection)
        if receiver is not None and receiver not in self._blocked:
            self._blocked[receiver] = None
            receiver.blocked(f"low on {' & '.join(self.alarms)}")

    def set_alarm(self, resource: str, active: bool) -> None:
        """Note that `resource` is short, or no longer."""
        if active:
            self._alarms.add(resource)
        else:
            self._alarms.discard(resource)
            self.wake()

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for receiver in blocked:
            self._loop.call_soon(receiver.unblocked)

    # ---------------------------------------------------------------- refusals and failures

    def refuse(self, channel: int, refusal: ReplyError) -> None:
        """Close what a refused command costs: the channel, or its connection.

        Its receiver is notified once what came before has been carried out, confirms included.
        """
        state = self.engine.state.channels.get(channel)
        if state is None:
            return
        if refusal.scope == "connection":
            self._close_connection(state.connection, refusal.reply_code, refusal.reply_text)
            return
        receiver = self.receivers.get(channel)
        self.engine.close_channel(channel, self._clock.now())

        def tell() -> None:
            self.receivers.pop(channel, None)
            if receiver is not None:
                receiver.closed(refusal.reply_code, refusal.reply_text)

        self.call_after_effects(tell)

    def load(self, record_ids: Sequence[int]) -> Sequence[Outgoing]:
        """Read messages for the engine.

        Where that fails the node is at its end. The engine goes on with empty messages, none of
        which will be delivered or kept: nothing is carried out after a failure.
        """
        if self.failure is None:
            try:
                return self._store.load(record_ids)
            except StoreError as error:
                if self._note_failure(error):
                    self._loop.call_soon(self._stop_failed)  # this is the midst of a command
        return [ON_DISK] * len(record_ids)

    def _note_failure(self, error: StoreError) -> bool:
        """Mark the node as failed: nothing more is delivered. False if it already was."""
        if self.failure is not None:
            return False
        self.failure = error
        log.critical("%r stops: %s", self._owner, error)
        self._backlog = deque(i for i in self._backlog if not isinstance(i, Deliver | Confirm))
        self._held = [item for item in self._held if not isinstance(item, Confirm)]
        return True

    def _stop_failed(self) -> None:
        """Close every connection, so that no client relies on the failed store."""
        self.close_connections(541, f"INTERNAL_ERROR - {self.failure}")

    def close_connections(
        self, reply_code: int, reply_text: str, connections: Sequence[int] | None = None
    ) -> None:
        """Close connections, by default all, and tell their receivers why."""
        for connection in list(self.connections) if connections is None else connections:
            self._close_connection(connection, reply_code, reply_text)

    def _close_connection(self, connection: int, reply_code: int, reply_text: str) -> None:
        receiver = self.connections.get(connection)
        self.close_connection(connection)
        try:
            if receiver is not None:
                receiver.closed(reply_code, reply_text)
        except Exception:
            log.exception("%r: a receiver failed at its close", self._owner)

    def close_connection(self, connection: int) -> None:
        """Requeue its deliveries at once; its receivers get nothing more."""
        receiver = self.connections.pop(connection, None)
        if receiver is not None:
            self._blocked.pop(receiver, None)
        for channel in self.engine.channels_of(connection):
            self.receivers.pop(channel, None)
        self.engine.close_connection(connection, self._clock.now())
        self.wake()
