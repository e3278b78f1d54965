"""The lock of a file: only one node of one process may open it."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import NamedTuple

from broker_client.errors import StoreError, StoreLockedError, StoreReadOnlyError
from broker_client.runtime.file_lock import try_lock, unlock
from broker_client.store.wal import LogPosition

log: logging.Logger = logging.getLogger(__name__)

SUFFIX = ".lock"
_BETWEEN_LOOKS = 0.1  # seconds between two looks at the lock file
_NOTE = re.compile(rb"clock ([0-9.]+) ([0-9.]+)(?: log ([0-9a-f]{16}) (\d+))?\n")


class Note(NamedTuple):
    """A note of the last commit, kept outside of the file."""

    wall: float
    """What the system's clock said, in seconds since the epoch."""
    now: float
    """What the node's clock said, which is not moved as the system's clock is set."""
    position: LogPosition | None
    """The end of the commit in the log; None after an end in order."""

    def __str__(self) -> str:
        log = ""
        if self.position is not None:
            log = f" log {self.position.salt.hex()} {self.position.frame:012d}"
        return f"clock {self.wall:020.6f} {self.now:020.6f}{log}\n"


def _parsed(text: bytes) -> Note | None:
    found = _NOTE.search(text)
    if found is None:
        return None
    position = None
    if found[3] is not None:
        position = LogPosition(bytes.fromhex(found[3].decode()), int(found[4]))
    return Note(float(found[1]), float(found[2]), position)


class FileLock:
    """An advisory lock on ``PATH.lock``, in which its holder writes who it is.

    The kernel releases it when the process ends, however it ends. The lock file stays: to remove
    it while another waits for it would leave two holders. Its second line is the note of the last
    commit: for `wal`, and for the times of deferred messages when the clock is set.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # by whatever name a file is opened, its lock is one
        self._name = self._path + SUFFIX
        self._fd: int | None = None
        self._opened: dict[str, tuple[int, int]] = {}
        """The identity of the file and of its log, by their paths."""
        self._look_again = 0.0
        self._head = f"{os.getpid()} {socket.gethostname()}\n".encode()
        self.noted: Note | None = None
        """What the holder before us has noted last."""

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreLockedError: another holds it; says who.
            StoreError: the lock file cannot be made, or the path leads to no file of its own.
            UnsupportedError: the system has no such locks.
        """
        self._check_kind()
        fd = self._open()
        self.noted = _parsed(os.pread(fd, 4096, 0))
        self._fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, self._head, 0)
        if self.noted is not None:
            self.note(self.noted)

    def _open(self) -> int:
        try:
            fd = os.open(self._name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreReadOnlyError(self._path, f"cannot write {self._name}") from error
            raise StoreError(self._path, f"cannot open {self._name}: {error.strerror}") from error
        try:
            if not try_lock(fd):
                raise StoreLockedError(self._path, _holder(self._name))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_kind(self) -> None:
        """Refuse what cannot have a lock by its name.

        Raises:
            StoreError: says what it is.
        """
        try:
            found = os.stat(self._path)
        except OSError:
            return  # it will be made
        if stat.S_ISDIR(found.st_mode):
            raise StoreError(self._path, "is a folder; give the path of a file")
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(self._path, "is not a regular file; give the path of one")
        if found.st_nlink > 1:
            # https://sqlite.org/howtocorrupt.html, section 2.5: each name has a log of its own
            raise StoreError(
                self._path,
                f"has {found.st_nlink} names (hard links), and each would have a lock of its own: "
                "remove the others, or give the path of a copy",
            )

    def note(self, note: Note) -> None:
        """Keep `note`; it is not synced."""
        assert self._fd is not None, "acquire() comes first"
        os.pwrite(self._fd, str(note).encode(), len(self._head))
        if note.position is None:
            os.ftruncate(self._fd, len(self._head) + len(str(note)))

    @property
    def position(self) -> LogPosition | None:
        """The log's minimum position if the previous holder did not close the file."""
        return None if self.noted is None else self.noted.position

    def forget_position(self) -> None:
        """The log is in the file: keep the rest of the note only."""
        if self.noted is not None:
            self.noted = self.noted._replace(position=None)
            self.note(self.noted)

    def check(self) -> None:
        """Check that the file, its log and its lock file are still those that were opened.

        A lock file that was deleted is made again, if nobody else was faster.

        Raises:
            StoreLockedError: another process holds the lock now.
            StoreError: the file was deleted, or another one has its place.
        """
        assert self._fd is not None, "acquire() comes first"
        for name in (self._path, f"{self._path}-wal"):
            found = _identity(name)
            if found is None or found != self._opened.setdefault(name, found):
                what = "was deleted" if found is None else "was replaced by another file"
                raise StoreError(
                    name, f"{what} while it was open: nothing more can be stored in it"
                )
        if time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + _BETWEEN_LOOKS
        held = os.fstat(self._fd)
        if (held.st_dev, held.st_ino) != _identity(self._name):
            log.warning("%s was deleted while its lock was held; it is created again", self._name)
            fd = self._open()
            os.pwrite(fd, self._head, 0)
            unlock(self._fd)
            os.close(self._fd)
            self._fd = fd

    def release(self) -> None:
        """Give the lock back. May be called more than once."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            unlock(fd)
            os.close(fd)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _holder(name: str) -> str:
    line = Path(name).read_text("utf-8", "replace").partition("\n")[0]
    pid, _, host = line.strip().partition(" ")
    if not pid:
        return "another process"
    if host != socket.gethostname() or not pid.isdecimal():
        return f"process {pid} on {host}"
    if pid == str(os.getpid()):
        return f"another event loop of this process, {pid}"
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return f"a process that was forked from process {pid}, which has ended"
    except OSError:
        pass
    return f"process {pid} on {host}"
