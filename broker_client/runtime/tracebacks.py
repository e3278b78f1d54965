"""Tracebacks that hold no secrets."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """`error`, and what led to it, without the frames they passed.

    For errors that come out of a library with a password among its locals: tools such as rich show
    the locals of each frame.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += each.__cause__, each.__context__
    return error
