"""One message on its way to the broker, and what became of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, ClassVar, NamedTuple, Protocol

from broker_client.emitter import Emitter, Listener
from broker_client.errors import PublishAbortedError, PublishError
from broker_client.message import Outgoing, Returned
from broker_client.tasks import TaskGroup

log = logging.getLogger("broker_client.publication")

_COMPLAIN_AFTER = 5.0  # seconds a failure may go unnoticed before it is logged


class Outcome(NamedTuple):
    """A publish that ended well."""

    message_id: str
    seconds: float
    """From the call to the confirm."""
    maybe_duplicate: bool
    """It was sent more than once, with the same message id: the broker may have it twice."""


class PublicationKeeper(Protocol):
    """Whoever holds the publication until it ends."""

    @property
    def is_paused(self) -> bool: ...
    def withdraw(self, publication: Publication, error: PublishError) -> bool: ...


WAITING, SENT, ENDED = "waiting", "sent", "ended"


class Publication(Emitter):
    """What `broker.publish` returns: the publish under way.

    Emits exactly one of ``success(message_id)``, ``return(message)`` (a `Returned`) and
    ``error(error, message_id)``, and ``paused(message_id)`` before it while it waits for a link.
    A listener that comes late is told what it missed. Awaiting it gives the `Outcome`, or raises
    the `PublishError` that says what happened instead.
    """

    EVENTS: ClassVar[frozenset[str]] = frozenset({"success", "error", "return", "paused"})

    __slots__ = (
        "_ended_with",
        "_future",
        "_keeper",
        "_noticed",
        "_result",
        "deadline",
        "maybe_duplicate",
        "message_id",
        "nacks_left",
        "name",
        "outgoing",
        "size",
        "started",
        "state",
    )

    def __init__(
        self,
        name: str,
        outgoing: Outgoing,
        keeper: PublicationKeeper,
        tasks: TaskGroup,
        *,
        started: float,
        timeout: float,
        nacks_left: int = 0,
    ) -> None:
        super().__init__(tasks)
        self.name = name
        self.outgoing = outgoing
        self.message_id = outgoing.properties.message_id or ""
        self.size = len(outgoing.body)
        self.started = started
        self.deadline = started + timeout if timeout else float("inf")
        self.nacks_left = nacks_left
        self.state = WAITING
        self.maybe_duplicate = False
        self._keeper = keeper
        self._future: asyncio.Future[Outcome] | None = None
        self._ended_with: tuple[str, tuple[Any, ...]] | None = None  # event and its arguments
        self._result: Outcome | PublishError | None = None
        self._noticed = False

    def __repr__(self) -> str:
        how = f" {self._ended_with[0]}" if self._ended_with else ""
        return f"<Publication {self.name} {self.message_id}: {self.state}{how}>"

    def __await__(self) -> Generator[Any, None, Outcome]:
        return self._outcome().__await__()

    async def _outcome(self) -> Outcome:
        self._noticed = True
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            self._settle_future()
        # Shielded: several may wait for one outcome, and one that stops waiting changes nothing.
        return await asyncio.shield(self._future)

    def abort(self) -> bool:
        """Take the message back; True when it had not been sent and never will be.

        False when it is too late: it was sent, if only on a link that was lost since.
        """
        return self._keeper.withdraw(self, PublishAbortedError(self.name, self.message_id))

    def when_ended(self, then: Callable[[PublishError | None], None]) -> None:
        """Call `then`, with what went wrong or None, as soon as it has ended."""
        self._noticed = True
        self.on("success", lambda message_id: then(None))
        self.on("error", lambda error, message_id: then(error))
        self.on("return", lambda message: then(self._failure()))

    def _failure(self) -> PublishError | None:
        return self._result if isinstance(self._result, PublishError) else None

    @property
    def is_ended(self) -> bool:
        """True after its `success`, `return` or `error`."""
        return self.state is ENDED

    # ------------------------------------------------------------------ for the keeper

    def succeed(self, now: float) -> None:
        """It is confirmed (or written, without confirms)."""
        outcome = Outcome(self.message_id, now - self.started, self.maybe_duplicate)
        self._end("success", (self.message_id,), outcome)

    def fail(self, error: PublishError) -> None:
        """It ended as an error."""
        self._end("error", (error, self.message_id), error)

    def give_back(self, error: PublishError, message: Returned) -> None:
        """The broker returned it."""
        self._end("return", (message,), error)

    def pause(self) -> None:
        """It waits because the link is down."""
        self.emit("paused", self.message_id)

    def _end(self, event: str, args: tuple[Any, ...], result: Outcome | PublishError) -> None:
        self.state = ENDED
        self._ended_with = event, args
        self._result = result
        self._settle_future()
        if self._listeners and event in self._listeners:
            self._noticed = True
            self.emit(event, *args)
        if not self._noticed and isinstance(result, PublishError):
            asyncio.get_running_loop().call_later(_COMPLAIN_AFTER, self._complain, result)

    def _settle_future(self) -> None:
        future, result = self._future, self._result
        if future is None or future.done() or result is None:
            return
        if isinstance(result, PublishError):
            future.set_exception(result)
            future.exception()  # retrieved: whoever awaits raises it, nobody is warned twice
        else:
            future.set_result(result)

    def _complain(self, error: PublishError) -> None:
        if not self._noticed:
            log.error("nobody awaited or listened to a publication that failed: %s", error)

    def _add(self, event: str, listener: Listener) -> None:
        super()._add(event, listener)
        ended = self._ended_with
        if ended is not None and ended[0] == event:
            self._noticed = True
            asyncio.get_running_loop().call_soon(self._tell_late, event, listener, ended[1])
        elif event == "paused" and self.state is WAITING and self._keeper.is_paused:
            asyncio.get_running_loop().call_soon(
                self._tell_late, event, listener, (self.message_id,)
            )

    def _tell_late(self, event: str, listener: Listener, args: tuple[Any, ...]) -> None:
        if self._listeners is not None and listener in self._listeners.get(event, ()):
            self._call(event, listener, args)  # this one only: the others have been told

    def _listener_failed(self, event: str, error: Exception) -> None:
        """Logged and no more: an `error` here would be a second end of the publication."""
        log.error("%r: a listener of %r raised", self, event, exc_info=error)
