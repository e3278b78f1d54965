"""What the failure of a channel means for the publishes that were on it.

When the broker closes the channel or the connection over one publish, it does not say which: all
that were unconfirmed are suspected, and sent one by one until the culprit was alone.
"""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import Protocol

from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    InvalidMessageError,
    MessageTooLargeError,
    PublishRefusedError,
)
from broker_client.publication import Publication
from broker_client.publishing.backlog import Backlog
from broker_client.publishing.suspicion import Suspicion
from broker_client.publishing.waiting import WaitingLine
from broker_client.transport.closes import Meaning, meaning_of
from broker_client.transport.limits import SizeLimit, size_limit_in

log: logging.Logger = logging.getLogger("broker_client.publishing")

_FRUITLESS = 5  # links lost in a row with nothing confirmed before what was sent is suspected


class PublishQueueOwner(Protocol):
    """What publishing needs of its vhost."""

    @property
    def link_state(self) -> str:
        """State for error texts: up, or down since when and why."""
        ...

    async def restore_topology(self) -> None:
        """Declare the topology again: something that a publication needs is missing."""
        ...


class Next(Enum):
    """What the sender does after a failure."""

    SEND = auto()
    PAUSE = auto()
    BACK_OFF = auto()


class ChannelFailures:
    """Judges the failed channels of one sender, and ends the publishes that are to blame."""

    def __init__(
        self,
        name: str,
        waiting: WaitingLine,
        backlog: Backlog,
        suspicion: Suspicion,
        owner: PublishQueueOwner,
    ) -> None:
        """
        Args:
            name: name of the publication.
            waiting: where unconfirmed publishes are again when a channel has failed.
            backlog: where publishes end.
            suspicion: shared by all senders of the connection.
            owner: the vhost.
        """
        self._name = name
        self._waiting = waiting
        self._backlog = backlog
        self._suspicion = suspicion
        self._owner = owner
        self._restored = False  # the topology was declared again for the sake of these
        self._fruitless = 0  # links lost in a row with nothing confirmed

    @property
    def has_suspects(self) -> bool:
        """True while publishes are to be sent alone on the whole connection."""
        return self._suspicion.has(self)

    def clear_suspects(self) -> None:
        """There are none any more."""
        self._suspicion.clear(self)

    def confirmed(self, publications: list[Publication]) -> None:
        """Note that the broker confirmed `publications`."""
        self._suspicion.losses.passed(publications)
        self._fruitless = 0
        self._restored = False

    async def judge(
        self, error: BrokerClientError, taken_back: list[Publication], *, has_turn: bool
    ) -> Next:
        """Decide what `error` means for `taken_back`, the unconfirmed publishes of the channel.

        Args:
            error: why the channel ended.
            taken_back: they wait again, in order.
            has_turn: no other sender used the connection.
        """
        meaning = Meaning.REFUSED if isinstance(error, InvalidMessageError) else meaning_of(error)
        if meaning is Meaning.LOST:
            return self._note_loss(taken_back, has_turn)
        if meaning is Meaning.BUSY:
            return Next.BACK_OFF
        if meaning is Meaning.MISSING and not self._restored:
            await self._restore_topology()
        elif not self._is_for_size(error):
            self._find_culprit(taken_back, error, has_turn)
            if not taken_back:
                return Next.PAUSE  # none of these is to blame: do not spin
        return Next.SEND

    def _note_loss(self, taken_back: list[Publication], has_turn: bool) -> Next:
        """The link was lost without a telling reason; if repeated, a message may be the cause."""
        losses, then = self._suspicion.losses, Next.PAUSE  # the link's loss is noticed in a moment
        self._fruitless += bool(taken_back)
        if has_turn and _was_alone(taken_back):
            [publication] = taken_back
            if losses.is_the_cause(publication):
                text = (
                    "the link was lost each time it carried this message alone, and not with others"
                )
                self._refuse(publication, 320, text)
                return then
            if (other := losses.another(publication, self._waiting.line)) is not None:
                self._waiting.put_first(other)  # does it pass?
                if other is publication:  # the only one left: do not lose links all the time
                    then = Next.BACK_OFF
        elif taken_back and not taken_back[0].suspected:
            losses.note(taken_back[0])
        if self._fruitless >= _FRUITLESS:
            self._suspect(taken_back, on_connection=True)
        return then

    async def _restore_topology(self) -> None:
        self._restored = True
        try:
            await self._owner.restore_topology()
        except BrokerClientError as failure:
            log.warning("%s: restoring the topology: %s", self._name, failure)

    def _is_for_size(self, error: BrokerClientError) -> bool:
        """True when `error` tells the largest body, and what is larger was ended."""
        if not isinstance(error, ChannelClosedError):
            return False
        limit = size_limit_in(error.reply_code, error.reply_text)
        larger = [each for each in self._waiting if limit and each.size > limit.size_bytes]
        for publication in larger:
            assert limit is not None
            self._waiting.remove(publication)
            self._backlog.failed(publication, too_large(publication, limit))
        return bool(larger)

    def _find_culprit(
        self, taken_back: list[Publication], error: BrokerClientError, has_turn: bool
    ) -> None:
        """One of `taken_back` was refused: the only one, if it was sent alone for that."""
        code, text, connection_ended = 0, str(error), False
        if isinstance(error, ChannelClosedError):
            code, text = error.reply_code or error.connection_code, error.reply_text
            connection_ended = not error.reply_code
        if _was_alone(taken_back) and (has_turn or not connection_ended):
            self._refuse(taken_back[0], code, text)
        else:
            self._suspect(taken_back, on_connection=connection_ended)

    def _suspect(self, publications: list[Publication], *, on_connection: bool) -> None:
        for publication in publications:
            publication.suspected = True
        if publications and on_connection:
            self._suspicion.register(self)

    def _refuse(self, publication: Publication, code: int, text: str) -> None:
        if self._waiting.remove(publication):
            error = PublishRefusedError(publication.name, publication.message_id, code, text)
            self._backlog.failed(publication, error)


def _was_alone(taken_back: list[Publication]) -> bool:
    return len(taken_back) == 1 and taken_back[0].suspected


def too_large(publication: Publication, limit: SizeLimit) -> MessageTooLargeError:
    """The error of a publish whose body the broker does not take."""
    return MessageTooLargeError(publication.name, publication.message_id, publication.size, *limit)
