"""The waiting publishes of one sender, in the order of acceptance."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from broker_client.publication import Publication


class WaitingLine:
    """A queue to whose front publishes return in their order."""

    def __init__(self) -> None:
        self.line: deque[Publication] = deque()
        """What may be sent, in order."""
        self._too_late: dict[Publication, None] = {}

    def __iter__(self) -> Iterator[Publication]:
        """All that have not ended, those that will not be sent included."""
        yield from self._too_late
        yield from self.line

    @property
    def has_suspect_in_front(self) -> bool:
        """True when the first is under suspicion, or the one that it overtook."""
        return any(publication.suspected for publication in islice(self.line, 2))

    def put_back(self, publications: Iterable[Publication]) -> None:
        """Put `publications` back to where they belong among those in front."""
        back = sorted(publications, key=_order)
        line = self.line
        while back and line and line[0].order < back[-1].order:
            back.append(line.popleft())
            back.sort(key=_order)
        line.extendleft(reversed(back))

    def put_first(self, publication: Publication) -> None:
        """Let `publication` overtake all others, which are in order again behind it."""
        self.line.remove(publication)
        self.line = deque((publication, *sorted(self.line, key=_order)))

    def set_aside(self, publication: Publication) -> None:
        """Keep one that was taken out until its time is over, without sending it."""
        self._too_late[publication] = None

    def remove(self, publication: Publication) -> bool:
        """Take `publication` out; False when it is not here."""
        if self._too_late and publication in self._too_late:
            del self._too_late[publication]
            return True
        try:
            self.line.remove(publication)
        except ValueError:
            return False
        return True

    def clear(self) -> None:
        self.line.clear()
        self._too_late.clear()


def _order(publication: Publication) -> int:
    return publication.order
