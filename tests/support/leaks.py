"""Finds tasks, sockets and threads that a test leaves behind."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from dataclasses import dataclass
from typing import Any, Self

SETTLE_TIMEOUT = 15.0
_POLL_INTERVAL = 0.01


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tasks of the running loop, and the sockets and threads of the process."""

    tasks: frozenset[asyncio.Task[Any]]
    sockets: frozenset[tuple[int, int]]
    """(file descriptor, inode) of each open socket."""
    threads: frozenset[threading.Thread]

    @classmethod
    def take(cls) -> Self:
        return cls(
            frozenset(task for task in asyncio.all_tasks() if task is not asyncio.current_task()),
            frozenset(_open_sockets()),
            # The loop's own executor keeps its threads until the loop is closed.
            frozenset(t for t in threading.enumerate() if not t.name.startswith("asyncio_")),
        )

    def leaked_since(self, before: Snapshot) -> list[str]:
        """One line for each thing that was not there `before`."""
        return [
            *(f"task {task.get_name()!r}: {task!r}" for task in self.tasks - before.tasks),
            *(f"socket {_ends(fd)}" for fd, _ in sorted(self.sockets - before.sockets)),
            *(f"thread {thread.name!r}" for thread in self.threads - before.threads),
        ]


async def leaks_since(before: Snapshot, *, timeout: float = SETTLE_TIMEOUT) -> list[str]:
    """What is left since `before`, after up to `timeout` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while leaked := Snapshot.take().leaked_since(before):
        if loop.time() >= deadline:
            break
        await asyncio.sleep(_POLL_INTERVAL)
    return leaked


def _open_sockets() -> list[tuple[int, int]]:
    found = []
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # the descriptor that listed the folder
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.append((int(name), status.st_ino))
    return found


def _ends(fd: int) -> str:
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            here = copy.getsockname()
            try:
                there = copy.getpeername()
            except OSError:
                there = "nobody"
    except OSError:
        return f"fd {fd}"
    return f"fd {fd}: {here} -> {there}"
