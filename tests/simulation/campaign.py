"""Very many seeds: in pieces, on several cores, with a file that says how far it is."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.simulation.levels import LEVELS, failure_of

_PIECE_SECONDS = 1.0  # how long a piece should take, about: what an interruption costs
_INTERRUPTED = 130  # exit status, as of a shell
_SEEDS_A_SECOND = {"node-short": 200, "node": 40}
_TELL_EVERY = 10.0  # seconds


class Campaign:
    """Seeds `first` to ``first + seeds`` of a level.

    Args:
        level: its name.
        first: seed.
        seeds: how many.
        file: keeps the number of seeds done, in order, so that a later run goes on from there;
            None to begin at the first.
    """

    def __init__(self, level: str, first: int, seeds: int, file: Path | None = None) -> None:
        self.level, self.first, self.seeds = level, first, seeds
        self._file = file
        self.done = 0
        """Seeds from the first on that have kept every promise."""
        if file is not None and file.exists():
            kept = json.loads(file.read_text())
            self.first, self.done = kept["first"], kept["done"]

    def run(self, jobs: int, tell: Callable[[str], None], size: int | None = None) -> int:
        """Run what is left, in `jobs` processes; returns the exit status.

        Args:
            jobs: processes at a time.
            tell: gets the progress, and a failure.
            size: seeds in a piece.
        """
        try:
            return self._run(jobs, tell, size)
        except KeyboardInterrupt:
            again = "" if self._file is None else "; the same command goes on from there"
            tell(f"{self.level}: interrupted after {self.done:,} of {self.seeds:,} seeds{again}")
            return _INTERRUPTED

    def _run(self, jobs: int, tell: Callable[[str], None], size: int | None) -> int:
        size = size or max(1, round(_SEEDS_A_SECOND.get(self.level, 1) * _PIECE_SECONDS))
        began, before, told = time.monotonic(), self.done, 0.0
        starts = range(self.first + self.done, self.first + self.seeds, size)
        pieces = [(self.level, at, min(size, self.first + self.seeds - at)) for at in starts]
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, _leave_interrupts_to_parent) as pool:
            for count, failure in pool.imap(_run_piece, pieces):
                if failure is not None:
                    tell(failure)
                    return 1
                self._add(count)
                taken = time.monotonic() - began
                if taken - told >= _TELL_EVERY or self.done == self.seeds:
                    told, rate = taken, (self.done - before) / taken
                    tell(f"{self.level}: {self.done:,} of {self.seeds:,} seeds, {rate:.1f}/s")
        tell(f"{self.level}: {self.done:,} seeds from {self.first}, all promises kept")
        return 0

    def _add(self, count: int) -> None:
        self.done += count
        if self._file is not None:
            text = json.dumps({"level": self.level, "first": self.first, "done": self.done})
            part = self._file.with_suffix(".part")
            part.write_text(text)
            part.replace(self._file)


def _leave_interrupts_to_parent() -> None:
    """A ctrl-C reaches every process of the terminal; the parent ends the pieces."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_piece(piece: tuple[str, int, int]) -> tuple[int, str | None]:
    """How many seeds it has, and the failure of one."""
    name, first, count = piece
    for seed in range(first, first + count):
        if (failure := failure_of(LEVELS[name], seed)) is not None:
            return count, str(failure)
    return count, None
