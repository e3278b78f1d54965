"""Commands that declare, bind, empty and delete exchanges and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_client.core.arguments import Arguments, queue_settings
from broker_client.core.dispatch import Dispatcher
from broker_client.core.exchange import Destination, Exchange
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.records import TopologyRecord, VHostAdded
from broker_client.core.replies import precondition_failed
from broker_client.core.settings import EngineSettings
from broker_client.core.vhost import VHost

NOTHING: Mapping[str, Any] = {}
SERVER_NAMED = "amq.gen-"
"""How the names begin that the engine gives to queues declared without one."""


class Declared(NamedTuple):
    """What a queue declaration answers."""

    name: str
    message_count: int
    """Ready messages only."""
    consumer_count: int


class TopologyCommands:
    """The part of the engine that changes what there is."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.vhosts: dict[str, VHost] = {}
        self._dispatch = Dispatcher(settings, self.vhosts)
        self._channels: dict[int, ChannelState] = {}
        self._last_id = 0

    # ---------------------------------------------------------------- exchanges

    def declare_exchange(
        self,
        channel: int,
        name: str,
        type: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        """Raises:
        ReplyError: 403 for a reserved name, 406 for an unknown type or a difference.
        """
        wanted = Exchange(
            name,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        self._vhost(channel).declare_exchange(wanted)

    def check_exchange(self, channel: int, name: str) -> None:
        """Raises:
        ReplyError: 404 when there is none.
        """
        self._vhost(channel).exchange(name)

    def delete_exchange(self, channel: int, name: str, *, if_unused: bool = False) -> None:
        """Raises:
        ReplyError: 403 for a predeclared one, 406 when in use and `if_unused`.
        """
        self._vhost(channel).delete_exchange(name, if_unused=if_unused)

    # ---------------------------------------------------------------- queues

    def declare_queue(
        self,
        channel: int,
        name: str,
        now: float,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> Declared:
        """Add the queue, named by the engine if `name` is empty, or check that it is the same.

        Raises:
            ReplyError: 403 for a reserved name, 405 for another's exclusive queue, 406 for bad
                arguments or a difference, 540 for a stream.
        """
        state = self._channels[channel]
        vhost = self.vhosts[state.vhost]
        arguments = arguments or NOTHING
        if name in vhost.queues:
            queue = vhost.queue(name, state.connection)
            vhost.check_same_queue(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
            self._used(queue, now)
            return _declared(queue)
        queue = Queue(
            name or f"{SERVER_NAMED}{self._next_id()}",
            vhost.name,
            durable=durable,
            owner=state.connection if exclusive else None,
            auto_delete=auto_delete,
            arguments=arguments,
            settings=queue_settings(arguments, name, vhost.name),
            now=now,
        )
        vhost.add_queue(queue, server_named=not name)
        self._used(queue, now)
        return _declared(queue)

    def check_queue(self, channel: int, name: str, now: float) -> Declared:
        """Raises:
        ReplyError: 404 when there is none, 405 for another connection's exclusive queue.
        """
        queue = self._queue(channel, name)
        self._used(queue, now)
        return _declared(queue)

    def delete_queue(
        self, channel: int, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete; returns the ready messages that went with it, 0 when there was no queue.

        Raises:
            ReplyError: 405 for another's exclusive queue, 406 for an unmet condition.
        """
        state = self._channels[channel]
        vhost = self.vhosts[state.vhost]
        if name not in vhost.queues:
            return 0
        queue = vhost.queue(name, state.connection)
        where = f"queue '{name}' in vhost '{vhost.name}'"
        if if_unused and queue.consumers:
            raise precondition_failed(f"{where} in use")
        if if_empty and queue.ready:
            raise precondition_failed(f"{where} not empty")
        count = len(queue.ready)
        self._delete_queue(queue)
        return count

    def purge_queue(self, channel: int, name: str) -> int:
        """Drop what is ready; returns the number.

        Raises:
            ReplyError: 404 when there is none, 405 for another's exclusive queue.
        """
        return self._dispatch.drop_all(self._queue(channel, name).clear())

    # ---------------------------------------------------------------- bindings

    def bind_queue(
        self, channel: int, queue: str, exchange: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 404 for a missing end, 403 for the default exchange, 405, 406.
        """
        self._queue(channel, queue)
        target = Destination("queue", queue)
        self._vhost(channel).bind(target, exchange, binding_key, arguments)

    def unbind_queue(
        self, channel: int, queue: str, exchange: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 403 for the default exchange, 405 for another's exclusive queue.
        """
        vhost = self._vhost(channel)
        if queue in vhost.queues:
            self._queue(channel, queue)
        vhost.unbind(Destination("queue", queue), exchange, binding_key, arguments)

    def bind_exchange(
        self, channel: int, destination: str, source: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 404 for a missing end, 403 for the default exchange, 406.
        """
        target = Destination("exchange", destination)
        self._vhost(channel).bind(target, source, binding_key, arguments)

    def unbind_exchange(
        self, channel: int, destination: str, source: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 403 for the default exchange.
        """
        target = Destination("exchange", destination)
        self._vhost(channel).unbind(target, source, binding_key, arguments)

    # ---------------------------------------------------------------- inside

    def _add_vhost(self, name: str) -> VHost:
        self.vhosts[name] = vhost = VHost(name, self._note)
        self._note(VHostAdded(name))
        return vhost

    def _note(self, record: TopologyRecord) -> None:
        if self.settings.keep_records:
            self._dispatch.effects.append(record)

    def _delete_queue(self, queue: Queue) -> None:
        self.vhosts[queue.vhost].remove_queue(queue)
        self._dispatch.retire_queue(queue)

    def _used(self, queue: Queue, now: float) -> None:
        queue.last_used = now
        if queue.settings.expires is not None:
            self._dispatch.schedule.look_again(queue)

    def _vhost(self, channel: int) -> VHost:
        return self.vhosts[self._channels[channel].vhost]

    def _queue(self, channel: int, name: str) -> Queue:
        state = self._channels[channel]
        return self.vhosts[state.vhost].queue(name, state.connection)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _declared(queue: Queue) -> Declared:
    return Declared(queue.name, len(queue.ready), len(queue.consumers))
