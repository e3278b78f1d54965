"""Resources that a forked child must not share with its parent.

`count` says how many forks lie between this process and the one that the program began in. What
belongs to one process remembers the number, and so notices that it was copied into another; to ask
for the id of the process would be a system call each time.

A child has a copy of every open file and socket. It would keep a lock or a port after its parent
has ended, keep a connection open that the parent has closed, and end it for the parent too with
what it writes to it. So in a child each descriptor that was given to `leave_to_parent` leads to
the null device, which leaves objects that know the number with something valid to write to and to
close.

Worst is the epoll of an event loop: a child that unwinds the stack which it was forked on, as
`sys.exit` does, closes its copy of the loop, and what it takes out of the epoll then is out of
the parent's, which threads can no longer wake. So in a child the loop gets its own epoll.
(uvloop does that itself; kqueue is not copied.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
from weakref import WeakSet

count: int = 0

_left: dict[int, tuple[int, int]] = {}
"""Descriptors of the parent, with the device and inode behind each: numbers are used again."""

_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def leave_to_parent(descriptor: int) -> None:
    """Keep forked children from sharing the open file or socket behind `descriptor`.

    It need not be reported when it is closed.
    """
    found = os.fstat(descriptor)
    _left[descriptor] = found.st_dev, found.st_ino


def leave_connection_to_parent(transport: asyncio.BaseTransport) -> None:
    """The same for the socket of a connection."""
    found = transport.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        leave_to_parent(found.fileno())


def leave_loop_to_parent(loop: asyncio.AbstractEventLoop) -> None:
    """Keep forked children from sharing the epoll of `loop`."""
    _loops.add(loop)


def _forked() -> None:
    global count
    count += 1
    for loop in _loops:
        _renew_epoll(loop)
    _loops.clear()
    if _left:
        _leave_descriptors()


def _renew_epoll(loop: asyncio.AbstractEventLoop) -> None:
    selector = getattr(loop, "_selector", None)  # asyncio has no public way to it
    if hasattr(select, "epoll") and isinstance(selector, selectors.EpollSelector):
        with contextlib.suppress(OSError, ValueError), select.epoll() as own:  # closed meanwhile
            os.dup2(own.fileno(), selector.fileno(), inheritable=False)


def _leave_descriptors() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, identity in _left.items():
        with contextlib.suppress(OSError):  # closed meanwhile
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == identity:
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
