"""Named events with listeners, plain or async, isolated from each other.

`pyee` was measured and not taken: one emitter is made for every message published, and making,
listening and emitting cost it three to four times as much as this one (`bench/emitter.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, overload

from broker_client.errors import (
    BrokerClientError,
    HandlerError,
    InvalidHandlerError,
    UnknownNameError,
)
from broker_client.runtime.tasks import PROGRAM_ENDS, TaskGroup, raise_in_loop

log: logging.Logger = logging.getLogger("broker_client.emitter")

Listener = Callable[..., Any]
L = TypeVar("L", bound=Listener)


class Emitter:
    """Base of everything with events.

    A subclass lists its events in `EVENTS`; listening to any other name is an error. A listener
    that raises is logged and reported as `error`; an `error` without a listener is logged.
    """

    EVENTS: ClassVar[frozenset[str]] = frozenset({"error"})

    __slots__ = ("_listeners", "_tasks")

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks  # async listeners run as tasks of this owner
        self._listeners: dict[str, list[Listener]] | None = None  # most emitters have none

    @overload
    def on(self, event: str, listener: Listener) -> Self: ...
    @overload
    def on(self, event: str) -> Callable[[L], L]: ...

    def on(self, event: str, listener: Listener | None = None) -> Self | Callable[[Any], Any]:
        """Call `listener` at every `event`. Returns self, so that calls chain.

        Without a listener, a decorator: ``@broker.on("error")``.

        Raises:
            UnknownNameError: there is no such event here.
            InvalidHandlerError: `listener` is not a function.
        """
        if listener is not None:
            self._add(event, listener)
            return self

        def decorate(listener: L) -> L:
            self._add(event, listener)
            return listener

        return decorate

    def once(self, event: str, listener: Listener) -> Self:
        """Call `listener` at the next `event` only."""

        self._add(event, _Once(self, event, listener))
        return self

    def off(self, event: str, listener: Listener) -> Self:
        """Stop calling `listener`; no error if it was not listening."""
        listeners = (self._listeners or {}).get(event)
        for each in listeners or ():
            if each == listener or (isinstance(each, WrappedListener) and each.wraps(listener)):
                assert listeners is not None
                listeners.remove(each)
                break
        return self

    def has_listener(self, event: str) -> bool:
        """True if `event` has a listener."""
        return bool(self._listeners and self._listeners.get(event))

    def listeners(self, event: str) -> Sequence[Listener]:
        """The listeners of `event`, in the order in which they are called."""
        return self._listeners.get(event, ()) if self._listeners else ()

    def emit(self, event: str, *args: Any) -> bool:
        """Call the listeners of `event` in the order they came; False without a listener."""
        listeners = self._listeners.get(event) if self._listeners else None
        if not listeners:
            if event == "error":
                error = args[0] if args else None
                log.error("%r: %s (no 'error' listener)", self, error, exc_info=_traced(error))
            return False
        for listener in tuple(listeners):
            self._call(event, listener, args)
        return True

    def _call(self, event: str, listener: Listener, args: tuple[Any, ...]) -> None:
        try:
            result = listener(*args)
        except PROGRAM_ENDS as error:
            raise_in_loop(error)
        except BaseException as error:  # noqa: BLE001 - user code behind a fence
            self._listener_failed(event, error)
        else:
            if inspect.isawaitable(result):
                task = self._tasks.spawn(self._finish(event, result), f"listener of {event!r}")
                if inspect.iscoroutine(result):
                    task.add_done_callback(partial(close_unstarted, result))

    async def _finish(self, event: str, result: Awaitable[Any]) -> None:
        try:
            await result
        except (*PROGRAM_ENDS, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - user code behind a fence
            self._listener_failed(event, error)

    def _listener_failed(self, event: str, error: BaseException) -> None:
        log.error("%r: a listener of %r raised", self, event, exc_info=error)
        if event != "error" and self.has_listener("error"):
            self.emit("error", error)

    def _add(self, event: str, listener: Listener) -> None:
        if event not in self.EVENTS:
            raise UnknownNameError("event", event, sorted(self.EVENTS))
        if not callable(listener):
            raise InvalidHandlerError(repr(listener), "a function is needed")
        if self._listeners is None:
            self._listeners = {}
        self._listeners.setdefault(event, []).append(listener)


class WrappedListener:
    """A listener that wraps another, so that `Emitter.off` finds it.

    Args:
        listener: the other.
        call: what is called instead.
    """

    __slots__ = ("_call", "_listener")

    def __init__(self, listener: Listener, call: Listener) -> None:
        self._listener = listener
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def wraps(self, listener: Listener) -> bool:
        """True when it stands for `listener`, directly or not."""
        inner = self._listener
        return inner == listener or (isinstance(inner, WrappedListener) and inner.wraps(listener))


class _Once(WrappedListener):
    """A listener that is removed when it is called."""

    __slots__ = ()

    def __init__(self, emitter: Emitter, event: str, listener: Listener) -> None:
        def call(*args: Any) -> Any:
            emitter.off(event, self)
            return listener(*args)

        super().__init__(listener, call)


def close_unstarted(coroutine: Coroutine[Any, Any, Any], task: object) -> None:
    """Close a coroutine whose task was cancelled before its first step."""
    coroutine.close()


def _traced(error: Any) -> BaseException | None:
    """What to log as traceback: for a handler's failure, the way to where it raised.

    Our own errors are complete without it, and may be repeated with every attempt to connect.
    """
    if isinstance(error, HandlerError):
        return error.__cause__
    if isinstance(error, BrokerClientError) or not isinstance(error, BaseException):
        return None
    return error if error.__traceback__ else None
