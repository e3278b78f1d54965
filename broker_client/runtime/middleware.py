"""Middleware: functions around an operation, each of which calls the next one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from broker_client.errors import InvalidMiddlewareError

C = TypeVar("C")
R = TypeVar("R")

Next = Callable[[C], Awaitable[R]]
Middleware = Callable[[C, Next[C, R]], Awaitable[R]]


def chained(middleware: Sequence[Middleware[C, R]], operation: Next[C, R]) -> Next[C, R]:
    """A function that runs `operation` inside all of `middleware`; the first one is outermost."""
    call = operation
    for each in reversed(middleware):
        call = _around(each, call)
    return call


def _around(middleware: Middleware[C, R], call_next: Next[C, R]) -> Next[C, R]:
    def call(subject: C) -> Awaitable[R]:
        return middleware(subject, call_next)

    return call


def check_middleware(middleware: Callable[..., Any]) -> None:
    """Refuse what cannot be called as ``await middleware(call, call_next)``.

    Raises:
        InvalidMiddlewareError: it is not async, or takes other arguments.
    """
    name = str(getattr(middleware, "__qualname__", repr(middleware)))
    called = middleware if inspect.isroutine(middleware) else getattr(middleware, "__call__", None)  # noqa: B004 - what a call runs
    if not inspect.iscoroutinefunction(called):
        raise InvalidMiddlewareError(name, "write it as `async def`")
    try:
        inspect.signature(middleware).bind(None, None)
    except TypeError as error:
        raise InvalidMiddlewareError(
            name, f"it is called as middleware(call, call_next) ({error})"
        ) from None
