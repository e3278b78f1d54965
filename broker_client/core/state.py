"""The state of an engine, shared by its commands and transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from broker_client.core.effects import Confirm, Effect
from broker_client.core.global_parameters import GlobalParameters
from broker_client.core.journal import Journal
from broker_client.core.long_work import LongWork
from broker_client.core.observer import Observer
from broker_client.core.paging import Paging
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.records import (
    AccessRecord,
    Boundary,
    MessageSource,
    TopologyRecord,
    VHostAdded,
    VHostRemoved,
)
from broker_client.core.schedule import Schedule
from broker_client.core.settings import EngineSettings
from broker_client.core.virtual_host import VirtualHost
from broker_client.errors import ReplyError

CHANNEL_IS_GONE = 504
"""Reply code of the refusal of a command for a channel that is closed."""


class _Channels(dict[int, ChannelState]):
    """The open channels.

    The node may close a channel, or all of a connection. Whoever uses it hears of that a little
    later, and may have given another command: that one is refused.
    """

    def __missing__(self, channel: int) -> NoReturn:
        raise ReplyError(CHANNEL_IS_GONE, f"CHANNEL_ERROR - channel {channel} is closed")


class State:
    """Vhosts, channels, effects, and what is kept about them."""

    def __init__(
        self,
        settings: EngineSettings,
        new_token: Callable[[], str] | None,
        observer: Observer | None,
        source: MessageSource | None,
    ) -> None:
        self.settings = settings
        self.new_token: Callable[[], str] = new_token or (lambda: str(self.next_id()))
        """Makes tokens that clients cannot guess, and that do not collide."""
        self.observer = observer
        self.vhosts: dict[str, VirtualHost] = {}
        self.channels: dict[int, ChannelState] = _Channels()
        self.global_parameters: GlobalParameters = GlobalParameters(self.note)
        self.effects: list[Effect] = []
        self.long_work: LongWork = LongWork()
        self.schedule: Schedule = Schedule()
        self.journal: Journal = Journal(self.effects)
        self.paging: Paging = Paging(settings.memory_limit, self.journal, source)
        self.late_settles = 0
        """Settlements that came after their delivery had been taken back."""
        self.last_id: int = 0
        self._confirming: list[ChannelState] = []

    def next_id(self) -> int:
        """A number that is unique in this engine."""
        self.last_id += 1
        return self.last_id

    def add_vhost(self, name: str) -> VirtualHost:
        """A new vhost."""
        self.vhosts[name] = vhost = VirtualHost(name, self.note, self.settings.compatibility)
        self.note(VHostAdded(name))
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost."""
        del self.vhosts[name]
        self.note(VHostRemoved(name))

    def vhost(self, channel: int) -> VirtualHost:
        """The vhost of `channel`."""
        return self.vhosts[self.channels[channel].vhost]

    def queue(self, channel: int, name: str) -> Queue:
        """The queue `name` as `channel` may use it.

        Raises:
            ReplyError: 404 if it does not exist, 405 when it is another connection's.
        """
        state = self.channels[channel]
        self.finish_commits(state)
        return self.vhosts[state.vhost].queue(name, state.connection)

    def finish_commits(self, channel: ChannelState) -> None:
        """Carry out its transactions at once, before a command whose answer depends on them."""
        if channel.committing:
            self.long_work.finish()

    def used(self, queue: Queue, now: float) -> None:
        """Restart the time of x-expires."""
        queue.last_used = now
        if queue.settings.expires is not None:
            self.schedule.look_again(queue)

    # ---------------------------------------------------------------- effects

    def confirm(self, channel: ChannelState, acked: bool) -> None:
        """Confirm the next publish of `channel`, together with those before it."""
        channel.publish_seq = seq = channel.publish_seq + 1
        if not channel.confirms_from:
            self._confirming.append(channel)
        elif channel.confirms_ack is acked:
            return
        else:
            self._end_run(channel, seq - 1)
        channel.confirms_from, channel.confirms_ack = seq, acked

    def end_confirms(self) -> None:
        """Put the confirms there are among the effects, one for each run of a channel.

        They stand behind the records of what they confirm, and behind its returns.
        """
        for channel in self._confirming:
            self._end_run(channel, channel.publish_seq)
        self._confirming.clear()

    def _end_run(self, channel: ChannelState, last: int) -> None:
        run = Confirm(channel.id, channel.confirms_from, last, channel.confirms_ack)
        self.effects.append(run)
        channel.confirms_from = 0

    @property
    def has_effects(self) -> bool:
        return bool(self.effects or self._confirming)

    def take_effects(self) -> list[Effect]:
        """The effects to carry out now, in this order; the caller owns the list."""
        self.end_confirms()
        self.paging.page_out()
        self.journal.effects_taken()
        taken = self.effects[:]
        self.effects.clear()
        return taken

    def note(self, record: TopologyRecord | AccessRecord | Boundary) -> None:
        """Add `record` to the effects, if there is a store."""
        if self.settings.keep_records:
            self.effects.append(record)
