"""The requests of a channel, with names and tables as RabbitMQ takes them and not as pamqp does."""

from __future__ import annotations

from typing import Self

from pamqp import commands
from pamqp.base import Frame

from broker_client.transport.base import Arguments
from broker_client.transport.method_arguments import encoded_arguments

_EMPTY_TABLE = bytes(4)


class _Unchecked(Frame):
    """pamqp refuses names that RabbitMQ takes, such as ``orders/*`` or ``größe``."""

    def validate(self) -> None:
        """Leave it to the broker; our own limits are checked in `check_names`."""


class _WithArguments(_Unchecked):
    """Ends with a table; pamqp encodes fewer types, and cuts long keys."""

    _table = b""

    def with_arguments(self, arguments: Arguments | None, frame_max: int) -> Self:
        """The same method with `arguments` as its table, for a frame of `frame_max` bytes.

        Raises:
            UnsupportedError: they hold what AMQP cannot carry.
        """
        if arguments:
            self._table = encoded_arguments(arguments, frame_max)
        return self

    def marshal(self) -> bytes:
        data = super().marshal()
        return data[: -len(_EMPTY_TABLE)] + self._table if self._table else data


class ExchangeDeclare(_WithArguments, commands.Exchange.Declare): ...


class ExchangeDelete(_Unchecked, commands.Exchange.Delete): ...


class ExchangeBind(_WithArguments, commands.Exchange.Bind): ...


class ExchangeUnbind(_WithArguments, commands.Exchange.Unbind): ...


class QueueDeclare(_WithArguments, commands.Queue.Declare): ...


class QueueDelete(_Unchecked, commands.Queue.Delete): ...


class QueuePurge(_Unchecked, commands.Queue.Purge): ...


class QueueBind(_WithArguments, commands.Queue.Bind): ...


class QueueUnbind(_WithArguments, commands.Queue.Unbind): ...


class BasicConsume(_WithArguments, commands.Basic.Consume): ...
