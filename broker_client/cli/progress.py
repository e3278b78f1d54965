"""Progress of a long command, on standard error."""

from __future__ import annotations

import sys
import time

import typer

_MANY = 10_000  # between two lines where no terminal is
_INTERVAL = 0.1  # seconds between two changes of the line on a terminal


class Progress:
    """One line that is updated on a terminal; elsewhere, a line from time to time."""

    def __init__(self, what: str, total: int | None = None) -> None:
        """
        Args:
            what: was done with the messages that are counted.
            total: how many there are, if that is known.
        """
        self._what = what
        self.total: int | None = total
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._told, self._next, self._width = 0, 0.0, 0

    def show(self, count: int, note: str = "") -> None:
        """Report the number done so far.

        Args:
            count: of all since the start.
            note: additional text.
        """
        if not self._is_terminal:
            if count // _MANY > self._told // _MANY:
                typer.echo(self._line(count, note), err=True)
                self._told = count
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL
            line = self._line(count, note)
            sys.stderr.write("\r" + line.ljust(self._width))
            sys.stderr.flush()
            self._width = len(line)

    def end(self) -> None:
        """Clear the line on the terminal."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width, self._next = 0, 0.0

    def _line(self, count: int, note: str) -> str:
        of = f" of {self.total:,}" if self.total else ""
        seconds = time.monotonic() - self._began
        rate = f", {count / seconds:,.0f} a second" if seconds > 1 else ""
        return f"{count:,}{of} {self._what}{rate}{f', {note}' if note else ''}"
