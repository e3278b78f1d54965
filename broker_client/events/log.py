"""Writes the delivery-event log: JSON lines, for analysis with Spark or anything else.

`record` hands a line to one writer thread through a bounded buffer and never waits: when the
buffer is full, or the disk fails, events are dropped and counted, and the gap in `seq` shows in
the log itself. Files lie at ``<path>/dt=<day>/node=<node>/<start in µs>-<number>.jsonl``. The one
being written is called ``.<name>.open``, which Spark does not see, and gets its name when it is
closed. What a crash leaves open, the next start closes, without a half line at its end.

docs/event-log.md describes the format.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from broker_client.events.delivery_event import DeliveryEvent, Lines
from broker_client.runtime.file_lock import try_lock
from broker_client.runtime.slotted import slotted

log: logging.Logger = logging.getLogger("broker_client.eventlog")

_DAY_US = 86_400_000_000
_CHUNK = 2_000  # lines written at a time
_RETRY_PAUSE = 1.0  # seconds before writing is tried again after the disk has failed
_LINGER = 0.02  # seconds the writer lets events gather: fewer, larger writes


@slotted
class EventLogStats:
    """State of a log, and counts since its start."""

    recorded: int
    """Events recorded."""
    written: int
    """Lines handed to the operating system."""
    dropped: int
    """Events lost to a full buffer or a failed disk."""
    waiting: int
    files: int
    """Begun so far."""


class EventLog:
    """The log of one node. `record` and `record_many` belong to one thread; the rest is free.

    Args:
        path: folder of the log, made when missing.
        node: name of the writer, in every line and in the name of its folder.
        max_bytes: a file is closed, and the next begun, after so many bytes.
        max_age: and after this time, in seconds.
        buffer: maximum number of events waiting to be written.

    Raises:
        OSError: `path` cannot be made or written to.
    """

    def __init__(
        self,
        path: str | Path,
        node: str,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        max_age: float = 60.0,
        buffer: int = 10_000,
    ) -> None:
        self.path: Path = Path(path)
        self.node = node
        self._buffer = buffer
        self._files = _Files(self.path, node, max_bytes, max_age)
        # Seconds are not unique: two logs of one node may begin in the same.
        self.lines: Lines = Lines(node, f"{time.time_ns() // 1000:x}{secrets.token_hex(2)}")
        """Makes the lines for `record_lines`, and numbers them."""
        self._waiting: deque[tuple[int, list[str]] | _Mark] = deque()
        # Each number is changed by one thread only, so none needs a lock.
        self._recorded = 0
        self._accepted = 0
        self._taken = 0
        self._written = 0
        self._failed = 0
        self._closed = False
        self._asleep = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"event log {node}", daemon=True)
        self._files.salvage()
        self._thread.start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<EventLog {self.node!r} in {str(self.path)!r}: {state}, {self.dropped} dropped>"

    @property
    def dropped(self) -> int:
        """Events lost to a full buffer or to a disk that failed."""
        return self._recorded - self._accepted + self._failed

    def stats(self) -> EventLogStats:
        waiting = max(0, self._accepted - self._taken)
        return EventLogStats(
            self._recorded, self._written, self.dropped, waiting, self._files.begun
        )

    # ------------------------------------------------------------------ taking in

    def record(self, event: DeliveryEvent) -> None:
        """Queue one event for writing. Never waits, never fails."""
        now = time.time()
        self.record_lines([self.lines.line(event, now)], now)

    def record_many(self, events: Iterable[DeliveryEvent], now: float | None = None) -> None:
        """Queue `events` for writing, in order.

        Args:
            now: time of those that have none, in seconds since the epoch; by default the present.
        """
        at, line = time.time() if now is None else now, self.lines.line
        self.record_lines([line(event, at) for event in events], at)

    def record_lines(self, lines: list[str], now: float) -> None:
        """Have lines written that `lines` made and numbered; the list is ours from here on.

        Args:
            now: seconds since the epoch; the day of their file.
        """
        self._recorded += len(lines)
        room = self._buffer - (self._accepted - self._taken)
        if self._closed or room <= 0:
            return
        del lines[room:]
        self._accepted += len(lines)
        self._waiting.append((int(now * 1_000_000) // _DAY_US, lines))
        if self._asleep:
            self._wake.set()

    # ------------------------------------------------------------------ the end

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all recorded so far is with the operating system; False if it took longer.

        The file stays open, so Spark does not see it: see `roll`.
        """
        return self._pass(_Mark(close_file=False), timeout)

    def roll(self, timeout: float = 5.0) -> bool:
        """Write the buffer and close the file, so that readers see everything recorded so far."""
        return self._pass(_Mark(close_file=True), timeout)

    def end(self) -> None:
        """Refuse further events, write the buffer and close the file, without waiting for it."""
        if not self._closed:
            self._closed = True
            self._waiting.append(_Mark(close_file=True))
            self._wake.set()

    def close(self, timeout: float = 5.0) -> bool:
        """`end`, and wait for it; False if it took longer than `timeout` seconds.

        May be called more than once. Events recorded after it are dropped and counted.
        """
        self.end()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _pass(self, mark: _Mark, timeout: float) -> bool:
        if not self._thread.is_alive():
            return True
        self._waiting.append(mark)
        self._wake.set()
        return mark.done.wait(timeout)

    # ------------------------------------------------------------------ the writer's thread

    def _run(self) -> None:
        while True:
            self._wake.clear()
            self._asleep = True
            if not self._waiting and not self._closed:
                self._wake.wait(self._files.seconds_left())
            self._asleep = False
            if self._waiting and not isinstance(self._waiting[-1], _Mark):
                time.sleep(_LINGER)
            while self._waiting:
                self._take()
            if self._files.seconds_left() == 0.0:
                self._attempt(self._files.close)
            if self._closed and not self._waiting:
                return

    def _take(self) -> None:
        """Write the buffer, up to a chunk or a mark."""
        lines: list[str] = []
        day, mark = 0, None
        while self._waiting and len(lines) < _CHUNK:
            item = self._waiting.popleft()
            if isinstance(item, _Mark):
                mark = item
                break
            day = day or item[0]
            lines += item[1]
        if lines:
            data = "".join(lines).encode("ascii")
            if self._attempt(lambda: self._files.write(data, day)):
                self._written += len(lines)
            else:
                self._failed += len(lines)
        self._taken += len(lines)
        if mark is not None:
            if mark.close_file:
                self._attempt(self._files.close)
            mark.done.set()

    def _attempt(self, work: Any) -> bool:
        try:
            return bool(work())
        except OSError as error:
            log.error("event log %s: %s; events are dropped until it works again", self.path, error)
            return False


class _Mark:
    """A position in the buffer that a caller waits for."""

    __slots__ = ("close_file", "done")

    def __init__(self, *, close_file: bool) -> None:
        self.close_file = close_file
        self.done = threading.Event()


class _Files:
    """The files of one log, one of them open at most. Used by the writer's thread."""

    def __init__(self, path: Path, node: str, max_bytes: int, max_age: float) -> None:
        self._path = path
        self._folder = f"node={quote(node, safe=' @+,;~')}"
        self._max_bytes, self._max_age = max_bytes, max_age
        self._file: FileIO | None = None
        self._open_path = Path()
        self._size = 0
        self._day = -1
        self._close_at = 0.0
        self.begun = 0
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "cannot write the event log", str(path))

    def seconds_left(self) -> float | None:
        """Until the open file is old enough to be closed; None without one."""
        if self._file is None:
            return None
        return max(0.0, self._close_at - time.monotonic())

    def write(self, data: bytes, day: int) -> bool:
        """Append whole lines; all of them or, when it fails, none."""
        if self._file is not None and (day != self._day or self._size >= self._max_bytes):
            self.close()
        if self._file is None:
            self._begin(day)
        file = self._file
        assert file is not None, "_begin opens it or raises"
        view = memoryview(data)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError:
            file.truncate(self._size)  # no half line for the next to be joined to
            file.seek(self._size)
            raise
        self._size += len(data)
        if self._size >= self._max_bytes or self.seconds_left() == 0.0:
            self.close()
        return True

    def close(self) -> bool:
        """Give the open file the name under which it is read."""
        file, self._file = self._file, None
        if file is not None:
            try:
                _publish(self._open_path)
            finally:
                file.close()
        return True

    def _begin(self, day: int) -> None:
        name = time.strftime("dt=%Y-%m-%d", time.gmtime(day * 86_400))
        folder = self._path / name / self._folder
        folder.mkdir(parents=True, exist_ok=True)
        start = time.time_ns() // 1000
        self.begun += 1
        self._open_path = folder / f".{start}-{self.begun}.jsonl.open"
        file = FileIO(self._open_path, "xb")
        # Held while we live: so `salvage` of another process knows this file is in use.
        try_lock(file.fileno())
        self._file, self._day, self._size = file, day, 0
        self._close_at = time.monotonic() + self._max_age

    def salvage(self) -> int:
        """Close what a crash left open, in this node's folders; returns how many files."""
        count = 0
        for left in self._path.glob(f"dt=*/{self._folder}/.*.open"):
            try:
                with left.open("r+b") as file:
                    if not try_lock(file.fileno()):
                        continue  # another process of the same name is writing it
                    whole = _end_of_last_line(file)
                    file.truncate(whole)
                    if whole:
                        _publish(left)
                    else:
                        left.unlink()
            except OSError as error:
                log.warning("event log: %s stays as it is: %s", left, error)
                continue
            count += 1
            log.info("event log: closed %s, left open by a crash", left)
        return count


def _publish(open_path: Path) -> None:
    open_path.rename(open_path.with_name(open_path.name[1:].removesuffix(".open")))


def _end_of_last_line(file: Any) -> int:
    """Bytes up to and with the last line feed."""
    end = int(file.seek(0, os.SEEK_END))
    while end:
        start = max(0, end - 65_536)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + int(at) + 1
        end = start
    return 0
