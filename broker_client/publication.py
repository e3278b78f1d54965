"""`Publication`: one publish and its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, ClassVar, NamedTuple

from broker_client.errors import PublishAbortedError, PublishError
from broker_client.message import Outgoing, Returned
from broker_client.runtime.deadlines import NEVER
from broker_client.runtime.emitter import Emitter, Listener
from broker_client.runtime.slotted import slotted
from broker_client.runtime.tasks import TaskGroup

log: logging.Logger = logging.getLogger("broker_client.publication")


class Outcome(NamedTuple):
    """The outcome of a publish that succeeded."""

    message_id: str
    seconds: float
    """Seconds from the call to the confirm."""
    maybe_duplicate: bool
    """True if it was sent more than once, with the same message id; the broker may have it
    twice."""


@slotted(eq=False)
class Origin:
    """What all publishes of one publication have in common: one object, shared by all of them."""

    name: str
    """Of the publication."""
    withdraw: Callable[[Publication, PublishError], bool]
    """Ends one that was not sent, with an error; False if it is too late."""
    tasks: TaskGroup
    """Owner of async listeners."""
    max_nacks: float = 0
    """Times a nacked message is sent again, within its time-out."""


WAITING, SENT, ENDED = "waiting", "sent", "ended"

_new = tuple.__new__  # a named tuple's own constructor is a Python call


class Publication(Emitter):
    """A publish in progress, as returned by `broker.publish`.

    Emits exactly one of ``success(message_id)``, ``return(message)`` (a `Returned`) and
    ``error(error, message_id)``, and before it ``paused(message_id)`` while it waits for a link.
    A listener that is added after the event is called at once. Awaiting it returns the `Outcome`
    or raises a `PublishError`.
    """

    EVENTS: ClassVar[frozenset[str]] = frozenset({"success", "error", "return", "paused"})

    # One is made for each message: what most never need is not set before it is.
    __slots__ = (
        "_complaint",
        "_ended_at",
        "_event",
        "_noticed",
        "_paused",
        "_returned",
        "_waiters",
        "deadline",
        "error",
        "maybe_duplicate",
        "nacks",
        "order",
        "origin",
        "outgoing",
        "sent_at",
        "started",
        "state",
        "suspected",
        "then",
    )

    order: int
    """Its position among the publications of its sender."""
    sent_at: float
    """Loop time when it was sent last; not set before."""
    _event: str
    _ended_at: float
    """The event it ended with, and when in loop time; not set before."""
    _returned: Returned
    """What came back; not set otherwise."""
    _complaint: _Complaint | None
    """Of a failure; not set otherwise."""

    def __init__(self, origin: Origin, outgoing: Outgoing, started: float, timeout: float) -> None:
        """
        Args:
            origin: its publication.
            outgoing: the message.
            started: loop time of the call.
            timeout: seconds for the whole publish; 0 for any time.
        """
        self.origin: Origin = origin
        self._tasks = origin.tasks
        self._listeners = None  # as in `Emitter.__init__`: one call less for each publish
        self.outgoing: Outgoing = outgoing
        self.started: float = started
        self.deadline: float = started + timeout if timeout else NEVER
        self.nacks: int = 0  # times the broker refused it
        self.suspected: bool = False  # the broker may have closed a channel or connection over it
        self.state: str = WAITING
        self.maybe_duplicate: bool = False
        self._paused = False
        self._noticed = False
        self._waiters: list[asyncio.Future[None]] | None = None
        self.then: Callable[[Publication], None] | None = None
        """Called with it when it has ended; set it with `tell_end`, or before that."""
        self.error: PublishError | None = None
        """Why it did not succeed; None while it has not ended, and if it did."""

    def __repr__(self) -> str:
        how = f" {self.event}" if self.event else ""
        return f"<Publication {self.name} {self.message_id}: {self.state}{how}>"

    def __await__(self) -> Generator[Any, None, Outcome]:
        self._noticed = True
        if self.state is not ENDED:
            yield from self._wait()
        if self.error is not None:
            self._withdraw_complaint()
            raise self.error.with_traceback(None)  # not the traceback of another awaiter
        seconds = self._ended_at - self.started
        message_id = self.outgoing.properties.message_id or ""
        return _new(Outcome, (message_id, seconds, self.maybe_duplicate))

    def _wait(self) -> Generator[Any, None, None]:
        """Wait on a separate future, so that cancelling one waiter does not affect others."""
        self._tasks.check_loop("a Publication")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        waiters = self._waiters
        waiters.append(waiter)
        try:
            yield from waiter
        finally:
            waiters.remove(waiter)

    def abort(self) -> bool:
        """Withdraw the message; True if it was not sent and never will be.

        False if it is too late: it was sent, possibly on a link that was lost afterwards.

        Raises:
            WrongLoopError: called in another event loop, or in a thread.
        """
        self._tasks.check_loop("a Publication")
        withdrawn = self.origin.withdraw(self, PublishAbortedError(self.name, self.message_id))
        if withdrawn:
            self._withdraw_complaint()  # the caller of `abort` knows how it ended
        return withdrawn

    def when_ended(self, then: Callable[[PublishError | None], None]) -> None:
        """Call `then` with the error, or None, as soon as the publication has ended."""
        self.tell_end(lambda publication: then(publication.error))

    def tell_end(self, then: Callable[[Publication], None]) -> None:
        """Call `then` with this publication as soon as the publication has ended."""
        if self.then is None and self.state is not ENDED:
            self.then = then  # three listeners would cost as much as the rest of a publish
            return
        self._noticed = True
        for event in ("success", "error", "return"):
            self.on(event, lambda *_: then(self))

    def observe(self, then: Callable[[Publication], None]) -> None:
        """Call `then` with this publication soon after it has ended. Unlike a listener, this
        does not keep an unnoticed failure from being logged."""
        if self.state is ENDED:
            then(self)
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(lambda _: then(self))
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(ended)

    @property
    def name(self) -> str:
        """Name of the publication."""
        return self.origin.name

    @property
    def message_id(self) -> str:
        """Id of the message, the same however often it is sent."""
        return self.outgoing.properties.message_id or ""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.outgoing.body)

    @property
    def max_nacks(self) -> float:
        """Times it is sent again after the broker refused it, within its time-out."""
        return self.origin.max_nacks

    @property
    def event(self) -> str:
        """The event it ended with: ``success``, ``return`` or ``error``; empty until then."""
        return self._event if self.state is ENDED else ""

    @property
    def was_sent(self) -> bool:
        """True once it was written to a channel, with any outcome."""
        return hasattr(self, "sent_at")

    @property
    def is_ended(self) -> bool:
        """True after its `success`, `return` or `error`."""
        return self.state is ENDED

    # ------------------------------------------------------------------ for the publish queue

    def succeed(self, now: float) -> None:
        """End as confirmed, or as written on a channel without confirms."""
        self._ended_at = now
        if self._waiters is not None or self._listeners is not None:
            self._end("success")
            return
        self.state, self._event = ENDED, "success"  # as usual: nobody to tell, or `publish_many`
        if self.then is not None:
            try:
                self.then(self)
            except Exception as error:  # noqa: BLE001 - as for a listener
                self._listener_failed("success", error)

    def fail(self, error: PublishError) -> None:
        """End with an error."""
        self.error, self._complaint = error, None
        self._end("error")

    def give_back(self, error: PublishError, message: Returned) -> None:
        """End as returned by the broker."""
        self.error, self._complaint, self._returned = error, None, message
        self._end("return")

    def pause(self) -> None:
        """Emit `paused`: it waits because the link is down."""
        self._paused = True
        self.emit("paused", self.message_id)

    def _end(self, event: str) -> None:
        self.state, self._event = ENDED, event
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self.then is not None:
            try:
                self.then(self)
            except Exception as error:  # noqa: BLE001 - as for a listener
                self._listener_failed(event, error)
        if self._listeners and event in self._listeners:
            self._noticed = True
            self.emit(event, *self._told())
        if self.error is not None and not self._noticed and self.then is None:
            self._complaint = _Complaint(self.error)

    def _withdraw_complaint(self) -> None:
        """The failure was noticed."""
        if self.error is not None and self._complaint is not None:
            self._complaint.withdraw()

    def _told(self) -> tuple[Any, ...]:
        """Arguments for the listeners of its final event."""
        if self._event == "success":
            return (self.message_id,)
        return (self.error, self.message_id) if self._event == "error" else (self._returned,)

    def _add(self, event: str, listener: Listener) -> None:
        self._tasks.check_loop("a Publication")
        super()._add(event, listener)
        if self.event == event:
            self._withdraw_complaint()
            asyncio.get_running_loop().call_soon(self._tell_late, event, listener, self._told())
        elif event == "paused" and self.state is WAITING and self._paused:
            asyncio.get_running_loop().call_soon(
                self._tell_late, event, listener, (self.message_id,)
            )

    def _tell_late(self, event: str, listener: Listener, args: tuple[Any, ...]) -> None:
        if self._listeners is not None and listener in self._listeners.get(event, ()):
            self._call(event, listener, args)  # this one only: the others have been called

    def _listener_failed(self, event: str, error: BaseException) -> None:
        """Log only: an `error` event would be a second end of the publication."""
        log.error("%r: a listener of %r raised", self, event, exc_info=error)


class _Complaint:
    """Logs an unobserved failure when its publication is garbage-collected.

    asyncio does the same for tasks: the line appears as soon as it is certain, even at exit.
    """

    __slots__ = ("_error", "_noticed")

    def __init__(self, error: PublishError) -> None:
        self._error = error
        self._noticed = False

    def withdraw(self) -> None:
        """The failure was noticed."""
        self._noticed = True

    def __del__(self) -> None:
        if not self._noticed:
            log.error("a publication failed, and nothing awaited it or listened: %s", self._error)
