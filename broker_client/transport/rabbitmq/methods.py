"""The questions a channel asks, with names as RabbitMQ takes them and not as pamqp does."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from broker_client.errors import InvalidNameError
from broker_client.transport.base import Arguments

_SURELY_SHORT = 63  # characters, four bytes at most each


class _Unchecked:
    """pamqp refuses names that RabbitMQ takes, such as ``orders/*`` or ``größe``."""

    def validate(self) -> None:
        """Leave it to the broker; our own limits are checked in `_check_names`."""


class ExchangeDeclare(_Unchecked, commands.Exchange.Declare): ...


class ExchangeDelete(_Unchecked, commands.Exchange.Delete): ...


class ExchangeBind(_Unchecked, commands.Exchange.Bind): ...


class ExchangeUnbind(_Unchecked, commands.Exchange.Unbind): ...


class QueueDeclare(_Unchecked, commands.Queue.Declare): ...


class QueueDelete(_Unchecked, commands.Queue.Delete): ...


class QueuePurge(_Unchecked, commands.Queue.Purge): ...


class QueueBind(_Unchecked, commands.Queue.Bind): ...


class QueueUnbind(_Unchecked, commands.Queue.Unbind): ...


class BasicConsume(_Unchecked, commands.Basic.Consume): ...


def field_table(arguments: Arguments | None) -> dict[str, Any] | None:
    """pamqp writes `bytearray` and no `bytes`."""
    if not arguments:
        return None
    return {
        key: bytearray(value) if isinstance(value, bytes) else value
        for key, value in arguments.items()
    }


def check_names(**names: str) -> None:
    """Refuse what no AMQP short string can hold, before anything is sent."""
    for kind, name in names.items():
        if len(name) > _SURELY_SHORT and len(name.encode()) > 255:
            raise InvalidNameError(
                kind.replace("_", " "), name, "is longer than the 255 bytes AMQP allows"
            )
