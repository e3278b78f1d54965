"""The spool: messages on disk between their ack and the end of the batch that handles them.

A folder of numbered Arrow files, *segments*. A segment is written under a hidden name, synced,
renamed, and its folder synced; only then may its messages be acked. Their names tell rows and
bytes, so planning a batch opens none of them::

    _lock                          held by the process that consumes; says which
    _epoch                         random id of this spool; part of every offset
    _floor                         everything up to this number has been handled and deleted
    _acked                         everything up to this number is known to be acked
    000000000007-5000-812345.arrow
    .000000000008-5000-812345.tmp  being written, or left by a process that was killed

Invariant: the numbers above the floor have no gap. No pyspark is imported here.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypedDict
from uuid import uuid4

import pyarrow as pa

from broker_client.runtime.file_lock import try_lock, unlock
from broker_client.runtime.files import for_owner_only
from broker_client.spark.errors import (
    SpoolEpochError,
    SpoolError,
    SpoolLockedError,
    SpoolSegmentMissingError,
)

_SEGMENT = re.compile(r"(\d{12,})-(\d+)-(\d+)\.arrow")
_LOCK_POLL = 0.05  # seconds between two attempts to lock
_RESUME_BELOW = 0.8  # share of the cap at which a full spool takes messages again


class Offset(TypedDict):
    """The position of a query. Spark compares offsets as JSON text: the order of keys is fixed."""

    epoch: str
    seq: int


class Segment(NamedTuple):
    """One complete file of the spool."""

    seq: int
    rows: int
    size_bytes: int
    path: Path


class Spool:
    """The spool in `folder`. Call `open` before anything else, and from one process only.

    Args:
        folder: a local folder, or one on a file system that every executor mounts.
        max_bytes: cap on all segments together.
        retain: handled segments to keep, for inspection; 0 deletes them all.
        owner: shown to others that find the spool locked.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, max_bytes: int, retain: int = 0, owner: str = ""
    ) -> None:
        self.folder: Path = Path(folder)
        self.epoch: str = ""
        self._max_bytes = max_bytes
        self._retain = retain
        self._owner = owner
        self._lock: int | None = None
        self._segments: dict[int, Segment] = {}
        self._floor = 0
        self._acked = 0
        self._full = False

    def __repr__(self) -> str:
        state = "open" if self._lock is not None else "closed"
        return f"<Spool {self.folder}: {state}, {len(self._segments)} segments>"

    # ------------------------------------------------------------------ life

    def open(self, *, lock_timeout: float = 0.0) -> None:
        """Take the lock and look at what is there.

        Args:
            lock_timeout: seconds to wait for a process that is on its way out.

        Raises:
            SpoolLockedError: another process holds it.
            SpoolError: the folder cannot be made or read.
        """
        if self._lock is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock(lock_timeout)
            self._look()
        except OSError as error:
            self.close()
            raise SpoolError(str(self.folder), str(error)) from error

    def close(self) -> None:
        """Give the lock back; the segments stay. May be called more than once."""
        if self._lock is not None:
            unlock(self._lock)  # a forked child may have a copy of the descriptor
            os.close(self._lock)
            self._lock = None

    def _take_lock(self, timeout: float) -> int:
        file = os.open(self.folder / "_lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + timeout
        while not try_lock(file):
            if time.monotonic() >= deadline:
                holder = os.pread(file, 1000, 0).decode(errors="replace").strip()
                os.close(file)
                raise SpoolLockedError(str(self.folder), holder or "another query")
            time.sleep(_LOCK_POLL)
        who = f"process {os.getpid()} on {socket.gethostname()}"
        os.ftruncate(file, 0)
        os.pwrite(file, f"{who} ({self._owner})\n".encode() if self._owner else who.encode(), 0)
        return file

    def _look(self) -> None:
        for left in self.folder.glob(".*.tmp"):
            left.unlink()  # never renamed, so never acked: the broker has its messages
        epoch = self.folder / "_epoch"
        if not epoch.exists():
            self._write_small("_epoch", uuid4().hex)
        self.epoch = epoch.read_text().strip()
        self._floor = self._read_number("_floor")
        self._segments = {segment.seq: segment for segment in scan(self.folder)}
        self._acked = max(self._read_number("_acked"), self._floor)
        self._update_full()

    def _read_number(self, name: str) -> int:
        try:
            return int((self.folder / name).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _write_small(self, name: str, text: str, *, sync: bool = True) -> None:
        temporary = self.folder / f".{name}.tmp"
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(self.folder / name)
        if sync:
            self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    # ------------------------------------------------------------------ writing

    def append(self, rows: pa.RecordBatch) -> Segment:
        """Make `rows` the next segment; once this returns, they survive a power cut."""
        seq = self.last_seq + 1
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_batch(rows)
        data = sink.getvalue()
        stem = f"{seq:012d}-{rows.num_rows}-{data.size}"
        temporary, final = self.folder / f".{stem}.tmp", self.folder / f"{stem}.arrow"
        self._write(temporary, data)
        temporary.rename(final)
        self._sync_folder()
        segment = self._segments[seq] = Segment(seq, rows.num_rows, data.size, final)
        self._update_full()
        return segment

    def _write(self, path: Path, data: pa.Buffer) -> None:
        with open(path, "wb", opener=for_owner_only) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def has_room_for(self, size_bytes: int) -> bool:
        """False when the cap is reached. An empty spool takes anything.

        Once it said False, it says so until the spool is down to 80 % of the cap.
        """
        if not self._segments:
            self._full = False
        elif self.size_bytes + size_bytes > self._max_bytes:
            self._full = True
        return not self._full

    def _update_full(self) -> None:
        if self.size_bytes >= self._max_bytes:
            self._full = True
        elif self.size_bytes <= self._max_bytes * _RESUME_BELOW:
            self._full = False

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in list(self._segments.values()))

    # ------------------------------------------------------------------ acks

    def mark_acked(self, seq: int) -> None:
        """The broker has the acks of all segments up to `seq`.

        Not synced: a mark that is lost makes us look for redeliveries that do not come.
        """
        if seq > self._acked:
            self._acked = seq
            self._write_small("_acked", str(seq), sync=False)

    def unacked(self) -> list[Segment]:
        """Segments whose messages the broker may hand out again."""
        return [segment for segment in self.after(self._acked) if segment.seq > self._acked]

    # ------------------------------------------------------------------ planning

    @property
    def last_seq(self) -> int:
        """Number of the newest segment, also when it is deleted."""
        return max(self._floor, max(list(self._segments), default=0))

    @property
    def floor(self) -> int:
        """Everything up to this number has been handled."""
        return self._floor

    def continue_after(self, seq: int) -> None:
        """A query has reached `seq`: new segments are numbered from there, whatever is left
        of the old ones."""
        if seq > self.last_seq:
            self._write_small("_floor", str(seq))
            self._floor = seq
            self._acked = max(self._acked, seq)

    def offset(self, seq: int) -> Offset:
        """The offset at the end of segment `seq`."""
        return {"epoch": self.epoch, "seq": seq}

    def check_epoch(self, epoch: str) -> None:
        """Raise SpoolEpochError unless `epoch` is this spool's."""
        if epoch != self.epoch:
            raise SpoolEpochError(str(self.folder), epoch, self.epoch)

    def after(self, seq: int) -> list[Segment]:
        """The segments above `seq`, in order."""
        return sorted(segment for segment in list(self._segments.values()) if segment.seq > seq)

    def end_of_batch(self, start: int, *, max_rows: int | None, max_bytes: int | None) -> int:
        """The last segment of a batch that begins after `start` and keeps to the limits.

        One segment at least, when there is one: a limit below a segment's size must not stop all.
        """
        end, rows, size = start, 0, 0
        for segment in self.after(start):
            rows += segment.rows
            size += segment.size_bytes
            over = (max_rows is not None and rows > max_rows) or (
                max_bytes is not None and size > max_bytes
            )
            if over and end > start:
                break
            end = segment.seq
        return end

    def between(self, start: int, end: int, *, missing_ok: bool = False) -> list[Segment]:
        """The segments of the batch (`start`, `end`].

        Raises:
            SpoolSegmentMissingError: one is not there, and `missing_ok` is False.
        """
        wanted = range(start + 1, end + 1)
        missing = [seq for seq in wanted if seq not in self._segments]
        if missing and not missing_ok:
            raise SpoolSegmentMissingError(str(self.folder), missing[0], missing[-1])
        return [self._segments[seq] for seq in wanted if seq in self._segments]

    # ------------------------------------------------------------------ deleting

    def release(self, seq: int) -> None:
        """Everything up to `seq` has been handled: delete it, save what is retained.

        A segment not known to be acked stays while there is room, since it tells redeliveries
        from new messages.
        """
        seq = min(seq, self.last_seq)
        if seq > self._floor:
            self._write_small("_floor", str(seq))
            self._floor = seq
        handled = [
            each for each in sorted(list(self._segments.values())) if each.seq <= self._floor
        ]
        keep = handled[-self._retain :] if self._retain else []
        for segment in handled:
            if (segment.seq <= self._acked or self._full) and segment not in keep:
                with suppress(FileNotFoundError):
                    segment.path.unlink()
                del self._segments[segment.seq]
        self._update_full()


def scan(folder: Path) -> Iterator[Segment]:
    """The complete segments in `folder`, in no order."""
    for path in folder.iterdir():
        if match := _SEGMENT.fullmatch(path.name):
            seq, rows, size = (int(group) for group in match.groups())
            yield Segment(seq, rows, size, path)


def read_segment(path: str | os.PathLike[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a segment, memory-mapped."""
    with pa.memory_map(os.fspath(path)) as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
