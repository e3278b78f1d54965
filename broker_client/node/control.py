"""What an application may ask of the node it runs, beside AMQP: nsq's FIN, REQ and TOUCH with
their outcomes, and a view of what is in flight and deferred."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from broker_client.core.engine import Engine
from broker_client.core.outcomes import NodeClosed, Outcome
from broker_client.core.snapshots import DeferredMessage, InFlightMessage, Purged


class NodeControl(ABC):
    """The part of a node that knows queues by vhost and name.

    What names a queue raises `ReplyError` 404 where there is none of that name.
    """

    engine: Engine

    @abstractmethod
    def now(self) -> float:
        """The node's time, in seconds since the epoch."""

    @abstractmethod
    def wake(self) -> None:
        """Carry out, soon, what the commands given to `engine` bring about."""

    @property
    @abstractmethod
    def accepts(self) -> bool:
        """False once it is closing, or has failed."""

    # ---------------------------------------------------------------- one delivery

    def finish(self, channel: int, delivery_tag: int) -> Outcome:
        """Settle a delivery for good (nsq's FIN).

        Args:
            channel: that it was delivered on, as the engine numbers it.
            delivery_tag: of the delivery.

        Returns:
            `Done`; or, with nothing changed and no channel closed, `NotInFlight` when it was
            settled, purged or given back, `NotOwner` when it timed out here and is in flight
            again under another delivery, `NodeClosed`.
        """
        if not self.accepts:
            return NodeClosed(delivery_tag)
        outcome = self.engine.finish(channel, delivery_tag, self.now())
        self.wake()
        return outcome

    def requeue(self, channel: int, delivery_tag: int, *, delay: float = 0.0) -> Outcome:
        """Give a delivery back (nsq's REQ).

        Args:
            channel: that it was delivered on.
            delivery_tag: of the delivery.
            delay: seconds to wait first; `max_requeue_timeout` at most, a longer one is cut.
                Without one it goes back to where it was, after one it goes to the tail.

        Returns:
            As `finish`.
        """
        if not self.accepts:
            return NodeClosed(delivery_tag)
        outcome = self.engine.requeue(channel, delivery_tag, self.now(), delay=delay)
        self.wake()
        return outcome

    def touch(self, channel: int, delivery_tag: int) -> Outcome:
        """Give a delivery more time (nsq's TOUCH): its message time-out again, from now, but no
        more than `max_message_timeout` from when it was delivered.

        Returns:
            As `finish`; `Done.seconds_left` is the time it now has.
        """
        if not self.accepts:
            return NodeClosed(delivery_tag)
        outcome = self.engine.extend(channel, delivery_tag, self.now())
        self.wake()
        return outcome

    # ---------------------------------------------------------------- a queue

    def in_flight(
        self, queue: str, *, vhost: str = "/", most: int = 100
    ) -> tuple[InFlightMessage, ...]:
        """What of a queue is in flight, longest first: who has it, since when, until when, at
        which attempt."""
        return self.engine.in_flight(vhost, queue, most=most)

    def deferred(
        self, queue: str, *, vhost: str = "/", most: int = 100
    ) -> tuple[DeferredMessage, ...]:
        """What of a queue waits for its time, next first."""
        return self.engine.deferred(vhost, queue, most=most)

    def cancel_deferred(
        self, queue: str, ids: Collection[int] | None = None, *, vhost: str = "/"
    ) -> int:
        """Drop deferred messages, all of them or those with these ids; returns their number."""
        count = self.engine.cancel_deferred(vhost, queue, ids)
        self.wake()
        return count

    def run_deferred(
        self, queue: str, ids: Collection[int] | None = None, *, vhost: str = "/"
    ) -> int:
        """Make deferred messages ready now, all or those with these ids; returns their number."""
        count = self.engine.run_deferred(vhost, queue, self.now(), ids)
        self.wake()
        return count

    def purge(
        self,
        queue: str,
        *,
        vhost: str = "/",
        ready: bool = True,
        deferred: bool = False,
        in_flight: bool = False,
    ) -> Purged:
        """Drop what a queue holds, by where it is; returns the counts."""
        purged = self.engine.purge(
            vhost, queue, self.now(), ready=ready, deferred=deferred, in_flight=in_flight
        )
        self.wake()
        return purged

    def pause_queue(self, queue: str, *, vhost: str = "/") -> None:
        """Deliver nothing from a queue until `resume_queue`.

        Publishes are taken, what is in flight may be settled or time out. A durable queue of a
        node with a file stays paused over a restart.
        """
        self.engine.pause_queue(vhost, queue)
        self.wake()

    def resume_queue(self, queue: str, *, vhost: str = "/") -> None:
        """Deliver again."""
        self.engine.resume_queue(vhost, queue, self.now())
        self.wake()
