"""What the broker and the client have promised so far, and whether they keep it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

ORDERED = "ordered"
"""The publication whose only consumer handles one message at a time and settles all of them."""


class BrokenPromiseError(AssertionError):
    """Something was promised and not kept."""


@dataclass
class Promises:
    """The books of one run. What is wrong is noted first: a callback may swallow an exception."""

    ends: dict[str, list[str]] = field(default_factory=dict)
    """Message id to its terminal events, all that were accepted."""
    abandoned: set[str] = field(default_factory=set)
    """Of publishers that were killed before they had heard of the outcome."""
    handled: Counter[str] = field(default_factory=Counter)
    """How often the handler of its queue got each message."""
    settled: set[str] = field(default_factory=set)
    """Acked by a handler, or as a dead letter."""
    asked_again: Counter[str] = field(default_factory=Counter)
    """How often a handler itself asked for another delivery, or let its time run out."""
    finished: set[str] = field(default_factory=set)
    """Whose handler has done its work, and settles now."""
    kept: set[str] = field(default_factory=set)
    """Accepted by an outbox."""
    hops: int = 1
    """How often a message is passed on between its publish and its handler, at least once each."""
    overslept: int = 0
    """How often a handler took longer than the broker waits, which costs a channel."""
    asleep_until: float = 0.0
    """Time of the loop until which such a handler sleeps."""
    in_order: bool = True
    """False once a publish may have overtaken another."""
    order: list[str] = field(default_factory=list)
    """Ids of `ORDERED`, as they were handled first."""
    broken: list[str] = field(default_factory=list)

    def break_(self, what: str) -> None:
        self.broken.append(what)

    def check(self) -> None:
        """
        Raises:
            BrokenPromiseError: a promise was broken.
        """
        if self.broken:
            raise BrokenPromiseError("; ".join(self.broken[:3]))

    # ---------------------------------------------------------------- what is seen

    def accepted(self, message_id: str) -> None:
        if message_id in self.ends:
            self.break_(f"{message_id} is used twice")
        self.ends[message_id] = []

    def ended(self, message_id: str, how: str) -> None:
        ends = self.ends[message_id]
        ends.append(how)
        if len(ends) > 1:
            self.break_(f"{message_id} has more than one terminal event: {', '.join(ends)}")

    def arrived(self, message_id: str, content: object) -> None:
        """A handler is called."""
        if message_id not in self.ends:
            self.break_(f"{message_id} was never published")
        if content != {"id": message_id}:
            self.break_(f"{message_id} has the body of {content}")
        if message_id.startswith(f"{ORDERED}-") and not self.handled[message_id]:
            self.order.append(message_id)
            before = [each for each in self.order if _source(each) == _source(message_id)]
            in_order = [_number(each) for each in before] == sorted(map(_number, before))
            if self.in_order and not in_order:
                self.break_(f"{message_id} was handled out of order: {before[-3:]}")
        self.handled[message_id] += 1

    def skipped(self, message_id: str) -> None:
        """A message was acked unhandled, since it was handled before."""
        if message_id not in self.finished:
            self.break_(f"{message_id} was taken for handled, and was not")
        self.settled.add(message_id)

    # ---------------------------------------------------------------- what is left

    @property
    def confirmed(self) -> set[str]:
        return {id for id, ends in self.ends.items() if ends == ["success"]}

    def unfinished(self) -> list[str]:
        """Messages that have no outcome yet, or are confirmed and not settled yet."""
        open_ = [id for id, ends in self.ends.items() if not ends and id not in self.abandoned]
        return open_ + sorted((self.confirmed | self.kept) - self.settled)

    def abandon(self, source: str) -> None:
        """The publisher `source` is killed."""
        self.abandoned |= {
            id for id, ends in self.ends.items() if not ends and _source(id)[1] == source
        }

    def closed(self, source: str) -> None:
        """The publisher `source` has shut down in order: nobody need wait for an outcome."""
        for id, ends in self.ends.items():
            if not ends and _source(id)[1] == source:
                self.break_(f"{id} has no terminal event, and its broker was shut down")

    def check_end(self, losses: int) -> None:
        """Everything has come to rest.

        Args:
            losses: connections that were lost, for whatever reason. Each may cost one repeat of a
                publish, of every other hop, and of a delivery, and nothing else may.

        Raises:
            BrokenPromiseError: a message is missing, or came too often.
        """
        for id, ends in self.ends.items():
            if not ends and id not in self.abandoned:
                self.break_(f"{id} has no terminal event")
        for id in sorted(self.confirmed - self.settled):
            self.break_(f"{id} was confirmed, and is lost")
        for id in sorted(self.kept - self.settled):
            self.break_(f"{id} was accepted by the outbox, and is lost")
        losses += self.overslept
        for id, count in self.handled.items():
            most = (1 + losses) ** self.hops * (1 + losses + self.asked_again[id])
            if count > most:
                self.break_(f"{id} was handled {count} times, {most} at most are due to faults")
        self.check()


def message_id(publication: str, source: str, number: int) -> str:
    return f"{publication}-{source}-{number:04}"


def _source(message_id: str) -> tuple[str, str]:
    publication, source, _ = message_id.split("-")
    return publication, source


def _number(message_id: str) -> int:
    return int(message_id.rpartition("-")[2])
