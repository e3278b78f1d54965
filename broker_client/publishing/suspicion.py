"""Finds the publish that makes the broker close the whole connection."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from broker_client.publication import Publication

_UNLIKELY = 1e-4  # probability below which losses over one publish are not a coincidence
_LOSSES_IN_ORDER = 3  # over one publish before another is sent ahead of it


class Losses:
    """Links that were lost without a reason while they carried a single publish.

    A bad network does that too, often several times in a row. So of losses with nothing confirmed
    between them one counts, and a publish is only the cause if so many losses over it would be most
    unlikely at the rate at which the link is lost over publishes that passed in the end.
    """

    def __init__(self) -> None:
        self._times: dict[Publication, int] = {}
        self._evidence: dict[Publication, int] = {}  # those that came right after a confirm
        self._has_passed = False  # something, since the last loss
        self._passes = 0.0
        self._by_chance = 0.0  # losses over publishes that passed later

    def is_the_cause(self, publication: Publication) -> bool:
        """Note a loss with `publication` alone on the link; True if it is the cause."""
        self._times = {each: times for each, times in self._times.items() if not each.is_ended}
        self._times[publication] = self._times.get(publication, 0) + 1
        if self._has_passed:
            self._evidence = {
                each: count for each, count in self._evidence.items() if each in self._times
            }
            self._evidence[publication] = self._evidence.get(publication, 0) + 1
        self._has_passed = False
        rate = (self._by_chance + 1) / (self._passes + self._by_chance + 2)
        return rate ** self._evidence.get(publication, 0) < _UNLIKELY

    def another(self, publication: Publication, line: Iterable[Publication]) -> Publication | None:
        """The one of `line` to try next, out of order: the first with the fewest losses over it.

        None while there were so few over `publication` that it is to be tried again itself.
        """
        if self._times.get(publication, 0) < _LOSSES_IN_ORDER:
            return None
        return min(line, key=lambda each: (self._times.get(each, 0), each.order))

    def note(self, publication: Publication) -> None:
        """Note a loss over others, `publication` the first of them."""
        self._has_passed = False
        if self._times:
            self._times[publication] = self._times.get(publication, 0) + 1

    def passed(self, publications: Collection[Publication]) -> None:
        """Note that the broker confirmed `publications`."""
        self._has_passed = True
        if not self._times:
            self._passes, self._by_chance = self._passes / 2, self._by_chance / 2
            return
        self._passes += 1
        if not self._times.keys().isdisjoint(publications):
            self._by_chance += sum(self._times.pop(each, 0) for each in publications)


class Suspicion:
    """Lets senders try suspected publishes one at a time on the whole connection.

    When the broker closes a connection over a publish, all senders had publishes on it. Each of
    them registers what it had unconfirmed; then they take turns with one publish each, while all
    others wait, until the culprit was alone when it happened again.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._suspects: set[object] = set()  # the senders that have some
        self._none = asyncio.Event()
        self._none.set()
        self.losses: Losses = Losses()
        """Of links, over one publish each."""

    @property
    def turn(self) -> asyncio.Lock:
        """Hold it to send publishes under suspicion."""
        return self._turn

    def register(self, sender: object) -> None:
        """`sender` has publishes under suspicion."""
        self._suspects.add(sender)
        self._none.clear()

    def clear(self, sender: object) -> None:
        """`sender` has none any more."""
        self._suspects.discard(sender)
        if not self._suspects:
            self._none.set()

    def has(self, sender: object) -> bool:
        """True when `sender` has publishes under suspicion."""
        return sender in self._suspects

    async def wait_none(self) -> None:
        """Return when no sender has any."""
        await self._none.wait()
