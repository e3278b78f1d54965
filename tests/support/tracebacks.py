"""Tracebacks as rich shows them, with the locals of every frame."""

from __future__ import annotations

import io

from rich.console import Console
from rich.traceback import Traceback


def with_locals(error: BaseException) -> str:
    """The output of a program with rich's tracebacks for `error`, not truncated."""
    shown = Traceback.from_exception(
        type(error),
        error,
        error.__traceback__,
        show_locals=True,
        locals_max_length=10_000,
        locals_max_string=10_000,
        max_frames=0,
    )
    console = Console(file=io.StringIO(), width=2_000)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
