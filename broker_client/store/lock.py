"""One process, and one node in it, may hold a file."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from broker_client.errors import StoreError, StoreLockedError, StoreReadOnlyError
from broker_client.runtime.file_lock import try_lock

SUFFIX = ".lock"


class FileLock:
    """An advisory lock on ``PATH.lock``, in which its holder writes who it is.

    The kernel lets go of it when the process ends, however it ends. The lock file stays: to
    remove it while another waits for it would leave two holders.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # by whatever name a file is opened, its lock is one
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreLockedError: another holds it; says who.
            StoreError: the lock file cannot be made.
            UnsupportedError: the system has no such locks.
        """
        name = self._path + SUFFIX
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreReadOnlyError(self._path, f"cannot write {name}") from error
            raise StoreError(self._path, f"cannot open {name}: {error.strerror}") from error
        try:
            if not try_lock(fd):
                raise StoreLockedError(self._path, _holder(name))
        except BaseException:
            os.close(fd)
            raise
        os.truncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back. May be called more than once."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def _holder(name: str) -> str:
    pid, _, host = Path(name).read_text("utf-8", "replace").strip().partition(" ")
    if not pid:
        return "another process"
    if pid == str(os.getpid()) and host == socket.gethostname():
        return f"another event loop of this process, {pid}"
    return f"process {pid} on {host}"
