"""What a channel declares, binds, empties and deletes on a RabbitMQ."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pamqp import commands
from pamqp.base import Frame

from broker_client.errors import ChannelClosedError
from broker_client.transport.base import Arguments, QueueState
from broker_client.transport.method_arguments import check_names
from broker_client.transport.rabbitmq.methods import (
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)


class TopologyMethods(ABC):
    """The part of `transport.base.Channel` that asks for exchanges, queues and bindings."""

    @property
    @abstractmethod
    def _frame_max(self) -> int:
        """Largest frame in bytes; 0 for no limit."""

    @abstractmethod
    async def _ask(self, frame: Frame) -> object:
        """Send `frame` and give back the broker's answer."""

    async def declare_exchange(
        self,
        name: str,
        type: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        check_names(exchange=name, exchange_type=type)
        await self._ask(
            ExchangeDeclare(
                exchange=name,
                exchange_type=type,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
            ).with_arguments(arguments, self._frame_max)
        )

    async def check_exchange(self, name: str) -> None:
        check_names(exchange=name)
        await self._ask(ExchangeDeclare(exchange=name, passive=True))

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        check_names(exchange=name)
        await self._ask(ExchangeDelete(exchange=name, if_unused=if_unused))

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueState:
        check_names(queue=name)
        return await self._ask_queue(
            QueueDeclare(
                queue=name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
            ).with_arguments(arguments, self._frame_max)
        )

    async def check_queue(self, name: str) -> QueueState:
        check_names(queue=name)
        return await self._ask_queue(QueueDeclare(queue=name, passive=True))

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        check_names(queue=name)
        ok = await self._ask(QueueDelete(queue=name, if_unused=if_unused, if_empty=if_empty))
        return int(getattr(ok, "message_count", 0) or 0)

    async def purge_queue(self, name: str) -> int:
        check_names(queue=name)
        ok = await self._ask(QueuePurge(queue=name))
        return int(getattr(ok, "message_count", 0) or 0)

    async def bind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        check_names(queue=queue, exchange=exchange, binding_key=binding_key)
        await self._ask(
            QueueBind(
                queue=queue,
                exchange=exchange,
                routing_key=binding_key,
            ).with_arguments(arguments, self._frame_max)
        )

    async def unbind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        check_names(queue=queue, exchange=exchange, binding_key=binding_key)
        await self._ask(
            QueueUnbind(
                queue=queue,
                exchange=exchange,
                routing_key=binding_key,
            ).with_arguments(arguments, self._frame_max)
        )

    async def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        check_names(exchange=destination, source=source, binding_key=binding_key)
        await self._ask(
            ExchangeBind(
                destination=destination,
                source=source,
                routing_key=binding_key,
            ).with_arguments(arguments, self._frame_max)
        )

    async def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        check_names(exchange=destination, source=source, binding_key=binding_key)
        await self._ask(
            ExchangeUnbind(
                destination=destination,
                source=source,
                routing_key=binding_key,
            ).with_arguments(arguments, self._frame_max)
        )

    async def _ask_queue(self, frame: Frame) -> QueueState:
        ok = await self._ask(frame)
        if not isinstance(ok, commands.Queue.DeclareOk):
            raise ChannelClosedError(0, f"unexpected answer {ok!r}")
        return QueueState(str(ok.queue or ""), ok.message_count or 0, ok.consumer_count or 0)
