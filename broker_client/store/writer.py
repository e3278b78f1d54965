"""The store of a node with a file: one thread writes, commits are grouped.

While one commit is on its way to the disk, all that is written and asked for meanwhile becomes
the next: the busier the node, the larger its commits, and the fewer syncs a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

from broker_client.core.records import Record, Recovered, message_number
from broker_client.errors import InvalidMessageError, StoreCorruptError, StoreError
from broker_client.message import Outgoing
from broker_client.runtime.clock import Clock, SystemClock
from broker_client.store.base import Committed
from broker_client.store.batch import Batch
from broker_client.store.lock import FileLock, Note
from broker_client.store.sqlite import StoreFile

log: logging.Logger = logging.getLogger(__name__)

_READ_BYTES = 4 * 1024 * 1024  # bodies read at a time
_MUCH = 8 * 1024 * 1024  # bodies that may wait for the commit before theirs
_MANY = 50  # messages of a batch whose writing should begin at once
_CLOCK_IS_SET = 1.0  # seconds between two clocks that are not the work of rounding
_START = 0.005  # seconds the event loop waits for that, at most


class SqliteStore:
    """Keeps a node's records in the SQLite file at `path`."""

    keeps = True

    def __init__(
        self, path: str, clock: Clock | None = None, *, wall: Callable[[], float] = time.time
    ) -> None:
        """Args:
        path: of the file.
        clock: the node's, in which the times of records count.
        wall: the system's clock, which may be set.
        """
        self.path = path
        self._clock, self._wall = clock or SystemClock(), wall
        self._file = StoreFile(path)
        self._lock = FileLock(path)
        self._work: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._batch = Batch(self._file.queue_ids)
        self._waiting: list[Committed] = []
        """Callbacks for the commit of `_batch`."""
        self._writing: Batch | None = None
        self._asked: list[Committed] = []
        """Callbacks for the commit of `_writing`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._closing = False
        self._error: StoreError | None = None

    def __repr__(self) -> str:
        state = "failed" if self._error else "closing" if self._closing else "open"
        return f"<SqliteStore {self.path} {state if self._loop else 'new'}>"

    # ---------------------------------------------------------------- start and end

    async def start(self, target: Recovered) -> None:
        """Lock and open the file in a thread of its own, and fill `target` there.

        Raises:
            StoreLockedError: another process has the file.
            StoreError: it cannot be used.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        ready: asyncio.Future[None] = loop.create_future()
        threading.Thread(
            target=self._run, args=(target, ready), name=f"store {self.path}", daemon=True
        ).start()
        try:
            await asyncio.shield(ready)
        except BaseException:
            self.release()
            await self._ended
            raise

    async def close(self) -> None:
        """Commit what was written and close the file. May be called more than once."""
        self.release()
        if self._ended is not None:
            await asyncio.shield(self._ended)

    def release(self) -> None:
        """As `close`, without waiting for the end of it."""
        if self._closing:
            return
        self._closing = True
        if self._loop is not None and self._writing is None:
            self._next()

    # ---------------------------------------------------------------- records

    @property
    def is_behind(self) -> bool:
        """True while one commit runs and the next has grown large already."""
        return self._writing is not None and self._batch.body_bytes > _MUCH

    def write(self, records: Sequence[Record]) -> None:
        """Take `records`, in order. Nothing is promised before `commit` has called back."""
        if self._error is not None:
            return
        try:
            self._batch.add(records)
        except InvalidMessageError as error:  # publishers are checked before; this is our fault
            self._error = StoreError(self.path, f"a message cannot be stored: {error}")
        except Exception as error:  # noqa: BLE001 - what was not kept must not be confirmed
            self._error = StoreError(self.path, f"a record cannot be stored: {error!r}")

    def commit(self, committed: Committed) -> None:
        """Make everything written so far safe, then call `committed` in the event loop."""
        self._waiting.append(committed)
        if self._writing is None and not self._batch.is_open:
            self._next()

    def load(self, record_ids: Sequence[int]) -> list[Outgoing]:
        """Read messages, those under way to the disk included.

        Raises:
            StoreError: one is damaged or missing, or the file cannot be read.
        """
        messages: list[Outgoing] = []
        size_bytes = 0
        for record_id in record_ids:
            number = message_number(record_id)
            message = self._file.load(number)
            if message is None and self._writing is not None:
                message = self._writing.message(record_id)
            if message is None:
                message = self._batch.message(record_id)
            if message is None:
                raise StoreCorruptError(self.path, f"message {number} is missing")
            messages.append(message)
            size_bytes += len(message.body)
            if size_bytes >= _READ_BYTES:
                break
        return messages

    def _next(self) -> None:
        """Have the thread write the collected records; closing the store comes after that."""
        self._asked, self._waiting = self._waiting, []
        batch, self._batch = self._batch, Batch(self._file.queue_ids)
        if self._error is None and batch:
            self._writing = batch
            self._work.put(batch)
            if batch.size > _MANY:
                # To begin, the thread needs the interpreter's lock. A loop that goes on at once
                # keeps it for a whole switch interval, as long as writing and syncing takes.
                batch.begun.acquire(timeout=_START)
            return
        if self._asked:
            assert self._loop is not None, "start() comes first"
            self._writing = batch  # so that the answers keep their order
            self._loop.call_soon(self._done, self._error)
        elif self._closing:
            self._work.put(None)

    def _done(self, error: StoreError | None) -> None:
        """The commit under way has ended; answer, after the next one is on its way."""
        self._error = self._error or error
        asked, self._asked = self._asked, []
        self._writing = None
        if self._closing or (self._waiting and not self._batch.is_open):
            self._next()
        for committed in asked:
            committed(self._error)

    # ---------------------------------------------------------------- the thread

    def _run(self, target: Recovered, ready: asyncio.Future[None]) -> None:
        try:
            self._open(target)
        except Exception as error:  # noqa: BLE001 - it is raised where `start` is awaited
            self._file.close()
            self._lock.release()
            self._tell(_fail, ready, error)
        else:
            self._tell(_finish, ready)
            while (batch := self._work.get()) is not None:
                batch.begun.release()
                failure = None
                try:
                    self._file.apply(batch)
                    self._lock.check()
                    self._note()
                except StoreError as error:
                    failure = error
                except Exception as error:  # noqa: BLE001 - silence would be worse: see _done
                    failure = StoreError(self.path, f"{type(error).__name__}: {error}")
                self._tell(self._done, failure)
            self._note(ended=True)
            self._file.close()
            self._lock.release()
        assert self._ended is not None, "made before the thread"
        self._tell(_finish, self._ended)

    def _open(self, target: Recovered) -> None:
        folder = os.path.dirname(self.path) or "."
        if not os.path.isdir(folder):
            raise StoreError(self.path, f"there is no folder {folder}; make it first")
        self._lock.acquire()
        self._file.open(self._lock.position)
        self._lock.check()
        self._set_times()
        self._note()
        self._file.recover(target)

    def _set_times(self) -> None:
        """Adjust times in the file where the system's clock was set meanwhile.

        What has passed since the last commit is what the system's clock says, and never less than
        nothing; since the node's clock is not set, both were noted. So a delay of 20 s ends after
        20 s, though a clock that was a day ahead is right again. A clock that is set ahead while no
        broker runs cannot be told from time that passes.
        """
        noted = self._lock.noted
        if noted is None:
            return
        passed = max(0.0, self._wall() - noted.wall)
        ahead = self._clock.now() - (noted.now + passed)
        if abs(ahead) >= _CLOCK_IS_SET:
            count = self._file.move_times(ahead)
            log.warning(
                "%s: the clock was set by %+.0f s; the times of %d messages are moved with it",
                self.path,
                ahead,
                count,
            )

    def _note(self, *, ended: bool = False) -> None:
        position = None if ended else self._file.position
        self._lock.note(Note(self._wall(), self._clock.now(), position))

    def _tell(self, call: object, *arguments: object) -> None:
        """Call in the event loop; no effect once that is closed."""
        assert self._loop is not None, "start() set it"
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
