"""Tracebacks without secrets and without cycles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

_LINKS = ("__cause__", "__context__")

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """`error`, with its causes, without their frames.

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
    return without_cycles(error)


def without_cycles(error: E) -> E:
    """`error`, with its causes, in a chain without cycles.

    A stream of asyncio raises one and the same error again and again. Where a library closes it
    while it handles an error made from that one, each of the two led to the other, and tools such
    as rich follow them forever.
    """
    above, done = {id(error)}, set[int]()
    path: list[tuple[BaseException, Iterator[str]]] = [(error, iter(_LINKS))]
    while path:
        each, links = path[-1]
        link = next(links, None)
        if link is None:
            path.pop()
            above.remove(id(each))
            done.add(id(each))
            continue
        before: BaseException | None = getattr(each, link)
        if before is None or id(before) in done:
            continue
        if id(before) in above:
            setattr(each, link, None)
            continue
        above.add(id(before))
        path.append((before, iter(_LINKS)))
    return error
