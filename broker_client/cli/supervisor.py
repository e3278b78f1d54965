"""Worker processes: started, restarted when they die or code changes, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

log: logging.Logger = logging.getLogger("broker_client.run")

SUPERVISOR_FD = "BROKER_CLIENT_SUPERVISOR_FD"
"""Variable with the number of a pipe that ends with the supervisor, however that ends."""

_FAILED_TO_START = 1  # status of a worker that failed to start
_MOST_FAILURES = 3  # to start, in a row, as the program begins
_BEGINNING = 30.0  # seconds in which failures to start end the program
_STEADY = 10.0  # seconds; a worker that ran so long is started again without a long pause
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds
_WATCHED = (".py", ".yaml", ".yml", ".json", ".toml")


def pause_after(deaths: int) -> float:
    """Seconds until a worker is started that died so often in a row: twice as many each time."""
    return min(_FIRST_PAUSE * 2.0 ** min(deaths - 1, 10), _LONGEST_PAUSE)


async def changes(folder: Path) -> AsyncIterator[list[str]]:
    """The paths of code and settings below `folder` that have changed, as they change.

    Raises:
        ImportError: watchfiles is not installed.
    """
    from watchfiles import DefaultFilter, awatch

    class Watched(DefaultFilter):  # leaves out .git, .venv, __pycache__ and the like
        def __call__(self, change: object, path: str) -> bool:
            return path.endswith(_WATCHED) and super().__call__(change, path)  # type: ignore[arg-type]

    async for found in awatch(folder, watch_filter=Watched()):
        yield sorted({path for _, path in found})


class Supervisor:
    """Keeps worker processes running until it is stopped.

    SIGTERM and SIGINT end the workers in order, a second one kills them. SIGHUP ends them in
    order and starts them again.
    """

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
        self._again = asyncio.Event()  # set once: each restart has an event of its own
        self._at_once = False
        self._failed = False
        self._began = 0.0

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; the status to end with."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # by nohup
            loop.add_signal_handler(signal.SIGHUP, self._restart, "SIGHUP")
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
        if self._stopping.is_set():
            log.warning("ending at once: messages that are being handled will be delivered again")
            self._at_once = self._failed = True
        self._stopping.set()
        self._end_workers()

    def _restart(self, reason: str) -> None:
        log.info("%s: starting again", reason)
        self._again.set()
        self._again = asyncio.Event()
        self._end_workers()

    def _end_workers(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill() if self._at_once else process.terminate()

    async def _keep(self, number: int, pipe: int) -> None:
        clock = asyncio.get_running_loop().time
        deaths = 0
        while not self._stopping.is_set():
            again, started = self._again, clock()
            status = await self._run_one(number, pipe)
            if self._stopping.is_set():
                return
            if again.is_set():
                deaths = 0
                continue
            deaths = 1 if clock() - started >= _STEADY else deaths + 1
            if self._folder is not None:
                log.error("worker %d ended with status %d; waiting for a change", number, status)
                await self._wait_for(again)  # it would fail again as it is
                continue
            is_beginning = clock() - self._began < _BEGINNING
            if status == _FAILED_TO_START and deaths >= _MOST_FAILURES and is_beginning:
                log.critical("worker %d failed %d times to start; ending", number, deaths)
                self._failed = True
                self._stopping.set()
                self._end_workers()
                return
            pause = pause_after(deaths)
            log.error("worker %d ended with status %d; again in %.1f s", number, status, pause)
            await self._wait_for(again, pause)

    async def _run_one(self, number: int, pipe: int) -> int:
        environment: Mapping[str, str] = {**os.environ, SUPERVISOR_FD: str(pipe)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, env=environment, pass_fds=(pipe,)
        )
        self._processes.add(process)
        log.info("worker %d is process %d", number, process.pid)
        if self._stopping.is_set():
            self._end_workers()
        try:
            return await process.wait()
        finally:
            self._processes.discard(process)

    async def _wait_for(self, again: asyncio.Event, seconds: float | None = None) -> None:
        """Wait until `again`, until stopped, or for `seconds`."""
        waits = {asyncio.create_task(each.wait()) for each in (again, self._stopping)}
        _, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    async def _watch(self) -> None:
        """Start the workers again whenever a file has changed."""
        if self._folder is None:
            return
        async for paths in changes(self._folder):
            self._restart(f"{', '.join(paths[:3])} changed")
