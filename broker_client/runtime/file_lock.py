"""Locks of whole files, which the kernel releases when their process ends, however it ends.

A lock belongs to the open file, and a forked child has a copy of that: it would keep the lock
after its parent has closed the file or was killed. So `unlock` is explicit, and a child loses its
copy: see `runtime.forks`.
"""

from __future__ import annotations

from broker_client.errors import UnsupportedError
from broker_client.runtime.forks import leave_to_parent


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
    leave_to_parent(file)
    return True


def unlock(file: int) -> None:
    """Release the lock of a descriptor, in forked children as well; call it before closing."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)
