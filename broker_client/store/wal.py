"""Checks of the write-ahead log that SQLite does not make.

Each frame of the log carries a checksum that goes on from the frame before. As SQLite opens a file
after a crash, it takes the frames up to the first that does not fit, and passes over the rest
without a word: that is right for the torn end that a power cut leaves, and wrong for a changed bit
in the middle, behind which commits stand that were confirmed. Two things tell them apart.

- Each commit is synced before the next is written. So behind a frame that was never whole there
  is at most one commit, its own; where there are more, the log was whole and is damaged.
- The position after each commit is noted outside of the log, in the lock file. SQLite must find
  the log at least as long, as long as it is the same log; one that was worked into the file begins
  again with another salt.

The note is not synced, so that it costs next to nothing: it survives the end of the process, and a
power cut leaves an older one at worst. Format: https://sqlite.org/walformat.html
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

_HEADER, _FRAME_HEADER = 32, 24
_BIG_ENDIAN_SUMS = 0x377F0683


class LogPosition(NamedTuple):
    """How far a log goes."""

    salt: bytes
    """Tells one run of the log from the next."""
    frame: int
    """The number of frames."""


class LogIndex:
    """The shared-memory file in which SQLite says how far the log goes.

    Close it after the last SQLite connection of this process to the file: to close any descriptor
    of a file releases the POSIX locks that SQLite holds on it.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)

    def position(self) -> LogPosition:
        """The end of the last commit."""
        (frame,) = struct.unpack_from("=I", self._map, 16)
        return LogPosition(self._map[32:40], frame)

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


def lost_commits(path: str, taken: LogPosition, noted: LogPosition | None) -> str | None:
    """What is wrong with the log of the file at `path`; None when nothing is lost.

    Args:
        path: of the file.
        taken: how far SQLite has read the log.
        noted: the last position that was noted.
    """
    try:
        data = Path(f"{path}-wal").read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEADER + _FRAME_HEADER:
        return None
    salt = data[16:24]
    if not _is_whole(data[:_HEADER]):
        salt = data[_HEADER + 8 : _HEADER + 16]  # the first frame has it too
    (page,) = struct.unpack_from(">I", data, 8)
    step = _FRAME_HEADER + (page if 512 <= page <= 65536 else 4096)
    behind = 0
    for at in range(_HEADER + taken.frame * step, len(data) - _FRAME_HEADER, step):
        if data[at + 8 : at + 16] == salt and data[at + 4 : at + 8] != b"\0\0\0\0":
            behind += 1
    if behind > 1:
        return f"its log is damaged: {behind} commits follow frame {taken.frame}, unreadable"
    if noted is not None and noted.salt == salt and noted.frame > taken.frame:
        return f"its log is damaged: it had {noted.frame} frames, and {taken.frame} can be read"
    return None


def _is_whole(header: bytes) -> bool:
    """True when the checksum of the log's header fits."""
    magic = struct.unpack_from(">I", header)[0]
    order = ">" if magic == _BIG_ENDIAN_SUMS else "<"
    words = struct.unpack_from(f"{order}6I", header)
    first = second = 0
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second) == header[24:32]
