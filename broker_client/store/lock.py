"""One process, and one node in it, may hold a file."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import stat
import time
from pathlib import Path

from broker_client.errors import StoreError, StoreLockedError, StoreReadOnlyError
from broker_client.runtime.file_lock import try_lock, unlock
from broker_client.store.wal import LogPosition

log = logging.getLogger(__name__)

SUFFIX = ".lock"
_BETWEEN_LOOKS = 0.1  # seconds between two looks at the lock file
_NOTE = re.compile(rb"log ([0-9a-f]{16}) (\d+)")


class FileLock:
    """An advisory lock on ``PATH.lock``, in which its holder writes who it is.

    The kernel releases it when the process ends, however it ends. The lock file stays: to remove
    it while another waits for it would leave two holders. Its second line is the note of the last
    commit, see `wal`.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # by whatever name a file is opened, its lock is one
        self._name = self._path + SUFFIX
        self._fd: int | None = None
        self._opened: dict[str, tuple[int, int]] = {}
        """The identity of the file and of its log, by their paths."""
        self._look_again = 0.0
        self._head = f"{os.getpid()} {socket.gethostname()}\n".encode()
        self.noted: LogPosition | None = None
        """What a holder before us has noted and, since it did not end in order, not taken back."""

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreLockedError: another holds it; says who.
            StoreError: the lock file cannot be made, or the path leads to no file of its own.
            UnsupportedError: the system has no such locks.
        """
        self._check_kind()
        fd = self._open()
        note = _NOTE.search(os.pread(fd, 256, 0))
        if note is not None:
            self.noted = LogPosition(bytes.fromhex(note[1].decode()), int(note[2]))
        self._fd = fd
        os.pwrite(fd, self._head, 0)
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
            raise StoreError(self._path, "is no regular file; give the path of one")
        if found.st_nlink > 1:
            # https://sqlite.org/howtocorrupt.html, section 2.5: each name has a log of its own
            raise StoreError(
                self._path,
                f"has {found.st_nlink} names (hard links), and each would have a lock of its own: "
                "remove the others, or give the path of a copy",
            )

    def note(self, position: LogPosition | None) -> None:
        """Keep the position of the last commit outside of the log; None takes the note back."""
        assert self._fd is not None, "acquire() comes first"
        if position is None:
            os.truncate(self._fd, len(self._head))
        else:
            line = f"log {position.salt.hex()} {position.frame:012d}\n"
            os.pwrite(self._fd, line.encode(), len(self._head))

    def check(self) -> None:
        """Notice that the file, its log or its lock file are no longer those that were opened.

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
                raise StoreError(name, f"{what} while it was open: nothing can be kept in it")
        if time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + _BETWEEN_LOOKS
        held = os.fstat(self._fd)
        if (held.st_dev, held.st_ino) != _identity(self._name):
            log.warning("%s was deleted while its lock was held; it is made again", self._name)
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
