"""Locks of whole files, which the kernel lets go of when their process ends, however it ends."""

from __future__ import annotations

from broker_client.errors import UnsupportedError


def try_lock(file: int) -> bool:
    """Have the open file to ourselves until it is closed; False when another process has it.

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
    return True
