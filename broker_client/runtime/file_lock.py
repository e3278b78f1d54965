"""Locks of whole files, which the kernel releases when their process ends, however it ends.

A lock belongs to the open file, and a forked child has a copy of that: it would keep the lock
after its parent has closed the file or was killed. So `unlock` is explicit, and in a child every
locked descriptor is made to lead to the null device, which closes the copy and leaves file objects
that know the number with something valid to write to and to close.
"""

from __future__ import annotations

import contextlib
import os

from broker_client.errors import UnsupportedError

_locked: dict[int, tuple[int, int]] = {}
"""Descriptors with a lock, and the device and inode behind each: numbers are used again."""


def try_lock(file: int) -> bool:
    """Lock the open file until `unlock`, or until it is closed; False when it is locked already.

    Args:
        file: a descriptor.

    Raises:
        UnsupportedError: the system has no such locks. Windows has none; a Broker whose messages
            are in memory, or on RabbitMQ, needs none.
    """
    try:
        import fcntl
    except ImportError:
        raise UnsupportedError(
            "a file that one process may have", "that takes the file locks of a POSIX system"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _locked[file] = _identity(file)
    return True


def unlock(file: int) -> None:
    """Release the lock of a descriptor, in forked children as well; call it before closing."""
    import fcntl

    _locked.pop(file, None)
    fcntl.flock(file, fcntl.LOCK_UN)


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _leave_locks_to_the_parent() -> None:
    if not _locked:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for file, identity in _locked.items():
        with contextlib.suppress(OSError):  # closed meanwhile
            if _identity(file) == identity:
                os.dup2(null, file, inheritable=False)
    os.close(null)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
