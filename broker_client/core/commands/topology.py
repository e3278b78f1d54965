"""Commands that declare, bind, empty and delete exchanges and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict, Unpack

from broker_client.core.arguments import Arguments, check_new_queue, queue_settings
from broker_client.core.direct_reply import DirectReplies
from broker_client.core.exchange import Destination, Exchange
from broker_client.core.queue import Queue
from broker_client.core.replies import precondition_failed
from broker_client.core.state import State
from broker_client.core.transitions import Transitions
from broker_client.core.virtual_host import VirtualHost

NOTHING: Mapping[str, Any] = {}
SERVER_NAMED = "amq.gen-"
"""Prefix of the names that the engine gives to queues declared without one."""


class Declared(NamedTuple):
    """What a queue declaration answers."""

    name: str
    message_count: int
    """Ready messages only."""
    consumer_count: int


class ExchangeDeclareArguments(TypedDict, total=False):
    """Options of an exchange declaration."""

    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Arguments | None


class QueueDeclareArguments(TypedDict, total=False):
    """Options of a queue declaration."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Arguments | None


class TopologyCommands:
    """Commands that change exchanges, queues and bindings."""

    def __init__(self, state: State, transitions: Transitions, replies: DirectReplies) -> None:
        self._state, self._transitions, self._replies = state, transitions, replies

    # ---------------------------------------------------------------- exchanges

    def declare_exchange(
        self, channel: int, name: str, type: str, **options: Unpack[ExchangeDeclareArguments]
    ) -> None:
        """Add the exchange, durable unless told otherwise, or check that it is the same.

        Raises:
            ReplyError: 403 for a reserved name, 406 for an unknown type or a difference.
        """
        self._state.vhost(channel).declare_exchange(Exchange(name, type, **options))

    def check_exchange(self, channel: int, name: str) -> None:
        """Raises:
        ReplyError: 404 if it does not exist, 403 for the default exchange (RabbitMQ).
        """
        self._state.vhost(channel).check_exchange(name)

    def delete_exchange(self, channel: int, name: str, *, if_unused: bool = False) -> None:
        """Raises:
        ReplyError: 403 for a predeclared one, 406 when in use and `if_unused`.
        """
        self._state.vhost(channel).delete_exchange(name, if_unused=if_unused)

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
        state = self._state.channels[channel]
        vhost = self._state.vhosts[state.vhost]
        arguments = vhost.metadata.typed(
            arguments or NOTHING, durable=durable, exclusive=exclusive, auto_delete=auto_delete
        )
        if self._replies.exists(name):
            return Declared(name, 0, 1)
        if name in vhost.queues:
            queue = vhost.queue(name, state.connection)
            vhost.check_same_queue(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
            self._state.used(queue, now)
            return _declared(queue)
        version = self._state.settings.compatibility
        settings = queue_settings(arguments, name, vhost.name, version)
        check_new_queue(arguments, name, vhost.name, version)
        vhost.check_room_for_queue(name)
        queue = Queue(
            name or self._new_name(vhost),
            vhost.name,
            durable=durable,
            owner=state.connection if exclusive else None,
            auto_delete=auto_delete,
            arguments=dict(arguments),
            settings=settings,
            last_used=now,
        )
        vhost.add_queue(queue, server_named=not name)
        self._state.used(queue, now)
        return _declared(queue)

    def _new_name(self, vhost: VirtualHost) -> str:
        name = ""
        while not name or name in vhost.queues:
            name = f"{SERVER_NAMED}{self._state.new_token()}"
        return name

    def check_queue(self, channel: int, name: str, now: float) -> Declared:
        """Raises:
        ReplyError: 404 if it does not exist, 405 for another connection's exclusive queue.
        """
        if self._replies.exists(name):
            return Declared(name, 0, 1)
        queue = self._state.queue(channel, name)
        self._state.used(queue, now)
        return _declared(queue)

    def delete_queue(
        self, channel: int, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete; returns the ready messages that went with it, 0 when there was no queue.

        Raises:
            ReplyError: 405 for another's exclusive queue, 406 for an unmet condition.
        """
        state = self._state.channels[channel]
        vhost = self._state.vhosts[state.vhost]
        if name not in vhost.queues:
            return 0
        queue = vhost.queue(name, state.connection)
        where = f"queue '{name}' in vhost '{vhost.name}'"
        if if_unused and queue.consumers:
            raise precondition_failed(f"{where} in use")
        if if_empty and queue.is_in_work:
            self._state.long_work.finish()
        if if_empty and queue.ready:
            raise precondition_failed(f"{where} not empty")
        count = len(queue.ready) + queue.returning
        self._transitions.delete_queue(queue)
        return count

    def purge_queue(self, channel: int, name: str) -> int:
        """Drop the ready messages; returns their number.

        Raises:
            ReplyError: 404 if it does not exist, 405 for another's exclusive queue.
        """
        queue = self._state.queue(channel, name)
        if queue.is_in_work:
            self._state.long_work.finish()  # it may be what makes them ready
        return self._transitions.drop_ready(queue)

    # ---------------------------------------------------------------- bindings

    def bind(
        self,
        channel: int,
        destination: Destination,
        exchange: str,
        binding_key: str,
        arguments: Arguments,
    ) -> None:
        """Bind a queue, or another exchange, to `exchange`; no error when it is bound already.

        Raises:
            ReplyError: 404 for a missing end, 403 for the default exchange, 405 for another's
                exclusive queue, 406 for a bad x-match.
        """
        if destination.kind == "queue":
            self._state.queue(channel, destination.name)
        self._state.vhost(channel).bind(destination, exchange, binding_key, arguments)

    def unbind(
        self,
        channel: int,
        destination: Destination,
        exchange: str,
        binding_key: str,
        arguments: Arguments,
    ) -> None:
        """Unbind; no error when there is no such binding, exchange or queue (RabbitMQ).

        Raises:
            ReplyError: 403 for the default exchange, 405 for another's exclusive queue.
        """
        vhost = self._state.vhost(channel)
        if destination.kind == "queue" and destination.name in vhost.queues:
            self._state.queue(channel, destination.name)
        vhost.unbind(destination, exchange, binding_key, arguments)


def _declared(queue: Queue) -> Declared:
    return Declared(queue.name, len(queue.ready) + queue.returning, len(queue.consumers))
