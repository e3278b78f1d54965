"""Worker processes: started, started again when they die or their code changes, ended together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

log = logging.getLogger("broker_client.run")

SUPERVISOR_FD = "BROKER_CLIENT_SUPERVISOR_FD"
"""Variable with the number of a pipe that ends with the supervisor, however that ends."""

_FAILED_TO_START = 1  # status of a worker that did not get so far as to run
_MOST_FAILURES = 3
_PAUSE = 0.5  # seconds between a death and the next start, and between two looks at the files
_WATCHED = (".py", ".yaml", ".yml", ".json", ".toml")


class Supervisor:
    """Keeps worker processes running until it is told to stop."""

    def __init__(self, command: Sequence[str], workers: int, folder: Path | None) -> None:
        """
        Args:
            command: arguments of Python for one worker.
            workers: how many to run.
            folder: where to look for changes; None does not look.
        """
        self._command = command
        self._workers = workers
        self._folder = folder
        self._processes: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._change = asyncio.Event()  # the next one; each has an event of its own
        self._failed = False

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; the status to end with."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        reading, writing = os.pipe()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    tasks.create_task(self._keep(number, reading), name=f"worker {number}")
                watching = tasks.create_task(self._watch(), name="watch")
                await self._stopping.wait()
                watching.cancel()
        finally:
            os.close(reading)
            os.close(writing)
        return int(self._failed)

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self, number: int, pipe: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            change = self._change
            status = await self._run_one(number, pipe)
            if self._stopping.is_set() or change.is_set():
                continue
            log.error("worker %d ended with status %d", number, status)
            if self._folder is not None:
                await self._wait_for(change)  # it would fail again as it is
                continue
            failures = failures + 1 if status == _FAILED_TO_START else 0
            if failures >= _MOST_FAILURES:
                log.critical("worker %d failed %d times to start; ending", number, failures)
                self._failed = True
                self._stop()
                return
            await asyncio.sleep(_PAUSE)

    async def _run_one(self, number: int, pipe: int) -> int:
        environment: Mapping[str, str] = {**os.environ, SUPERVISOR_FD: str(pipe)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, env=environment, pass_fds=(pipe,)
        )
        self._processes.add(process)
        log.info("worker %d is process %d", number, process.pid)
        if self._stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        finally:
            self._processes.discard(process)

    async def _wait_for(self, change: asyncio.Event) -> None:
        """Wait for `change`, or to be stopped."""
        waits = {asyncio.create_task(each.wait()) for each in (change, self._stopping)}
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    async def _watch(self) -> None:
        """End the workers whenever a file has changed; `_keep` starts them again."""
        if self._folder is None:
            return
        before = await asyncio.to_thread(_times, self._folder)
        while True:
            await asyncio.sleep(_PAUSE)
            now = await asyncio.to_thread(_times, self._folder)
            if now != before:
                changed = sorted({str(path) for path, _ in before ^ now})
                log.info("%s changed: starting again", ", ".join(changed[:3]))
                before = now
                self._change.set()
                self._change = asyncio.Event()
                for process in self._processes:
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()


def _times(folder: Path) -> set[tuple[Path, int]]:
    found = set()
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        for name in files:
            if name.endswith(_WATCHED):
                path = Path(root, name)
                with contextlib.suppress(OSError):
                    found.add((path, path.stat().st_mtime_ns))
    return found
