"""Declares exchanges, queues and bindings: assert, check, purge, delete.

The order is rascal's: assert exchanges, check exchanges, assert queues, check queues,
purge, bind. Each phase is spread over `concurrency` channels.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from broker_client.config import BindingConfig, ExchangeConfig, QueueConfig, VhostConfig
from broker_client.errors import (
    ChannelClosedError,
    OperationTimeoutError,
    TopologyError,
    TopologyMismatchError,
    UnsupportedError,
)
from broker_client.transport.base import Channel, Link

log: logging.Logger = logging.getLogger("broker_client.topology")

T = TypeVar("T", ExchangeConfig, QueueConfig, BindingConfig)
Step = Callable[[Channel, T], Awaitable[object]]

Part = Literal["all", "shared", "own"]
"""`own` is what belongs to the connection of its consumers: AMQP 0-9-1 §1.7.2.1, an exclusive
queue may only be declared, bound and consumed on one connection. `shared` is the rest."""

_NOT_FOUND = 404
_FAULT_OF_THE_ITEM = (403, 405, 406)  # refused, locked by another connection, not as declared


class Topology:
    """The declarations of one vhost, by their names on the broker."""

    def __init__(self, config: VhostConfig) -> None:
        self._config = config
        self._vhost = config.name
        self._exchanges = [each for each in config.exchanges.values() if each.name]
        self._queues = list(config.queues.values())
        self._bindings = list(config.bindings)

    def __repr__(self) -> str:
        return (
            f"<Topology {self._vhost}: {len(self._exchanges)} exchanges, {len(self._queues)} "
            f"queues, {len(self._bindings)} bindings>"
        )

    @property
    def has_own(self) -> bool:
        """True when some queue belongs to the connection of its consumers."""
        return any(queue.options.exclusive for queue in self._queues)

    async def establish(
        self, link: Link, *, purge: bool, part: Part = "all", lenient: bool = False
    ) -> list[TopologyError]:
        """Declare everything; raise if that fails.

        Args:
            link: where.
            purge: empty the queues that ask for it. True the first time only: a reconnect that
                emptied queues would lose what was published meanwhile (differs from
                rascal).
            part: what of it.
            lenient: go on without what is refused for its own sake, and return that. What speaks
                for a broker in trouble raises all the same, such as 404 for a declaration
                (RabbitMQ: the node a queue lives on is down).

        Raises:
            TopologyError: something is there with other settings, or is missing.
            TransportError: the link failed meanwhile.
        """
        exchanges = self._exchanges if part != "own" else []
        queues, bindings = self._queues_of(part), self._bindings_of(part)
        async with self._channels(link, lenient=lenient) as run:
            await run(_assert_exchange, [each for each in exchanges if each.assert_])
            await run(_check_exchange, [each for each in exchanges if each.check])
            await run(_assert_queue, [each for each in queues if each.assert_])
            await run(_check_queue, [each for each in queues if each.check])
            if purge:
                await run(_purge_queue, [each for each in queues if each.purge])
            await run(_bind, bindings)
        return run.refused

    async def purge(self, link: Link, *, part: Part = "all", only: str | None = None) -> int:
        """Purge every queue, or `only` one; returns the number of messages."""
        counts: list[int] = []

        async def purge_one(channel: Channel, queue: QueueConfig) -> None:
            counts.append(await channel.purge_queue(queue.qualified_name))

        async with self._channels(link) as run:
            queues = self._queues_of(part)
            await run(purge_one, [each for each in queues if only in (None, each.name)])
        return sum(counts)

    async def delete(self, link: Link) -> None:
        """Delete every exchange and queue; exclusive queues go with their connection."""
        async with self._channels(link) as run:
            await run(_delete_exchange, self._exchanges)
            await run(_delete_queue, self._queues_of("shared"))

    def _queues_of(self, part: Part) -> list[QueueConfig]:
        if part == "all":
            return self._queues
        return [each for each in self._queues if each.options.exclusive == (part == "own")]

    def _bindings_of(self, part: Part) -> list[BindingConfig]:
        if part == "all":
            return self._bindings
        own = {queue.name for queue in self._queues_of("own")}
        return [
            each
            for each in self._bindings
            if (each.destination_type == "queue" and each.destination in own) == (part == "own")
        ]

    @asynccontextmanager
    async def _channels(self, link: Link, *, lenient: bool = False) -> AsyncIterator[_Runner]:
        runner = _Runner(self._vhost, link, lenient=lenient)
        try:
            for _ in range(self._config.concurrency):
                runner.channels.append(await link.open_channel())
            yield runner
        except BaseException:
            for channel in runner.channels:
                channel.abort()
            raise
        for channel in runner.channels:
            await channel.close()


class _Runner:
    """Carries out one phase: item i on channel i modulo their number."""

    def __init__(self, vhost: str, link: Link, *, lenient: bool) -> None:
        self._vhost = vhost
        self._link = link
        self._lenient = lenient
        self.channels: list[Channel] = []
        self.refused: list[TopologyError] = []

    async def __call__(self, step: Step[T], items: Sequence[T]) -> None:
        if not items:
            return
        count = len(self.channels)
        shares = [self._share(index, step, items[index::count]) for index in range(count)]
        if count == 1:
            await shares[0]
            return
        tasks = [asyncio.ensure_future(share) for share in shares]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise

    async def _share(self, index: int, step: Step[T], items: Sequence[T]) -> None:
        for item in items:
            try:
                await step(self.channels[index], item)
            except OperationTimeoutError as error:
                what = f"{_name(item)} of vhost {self._vhost!r} at {self._link.url}"
                raise OperationTimeoutError(f"{what} (connect_timeout)", error.waited) from error
            except UnsupportedError as error:
                what = f"{_name(item)} of vhost {self._vhost!r}"
                raise UnsupportedError(what, error.why) from error
            except ChannelClosedError as error:
                if not error.reply_code:
                    raise  # the link is gone: not a fault of the item
                refusal = _refusal(self._vhost, _name(item), error)
                if not self._lenient or not _is_fault_of_item(step, error.reply_code):
                    raise refusal from error
                self.refused.append(refusal)
                self.channels[index] = await self._link.open_channel()


def _is_fault_of_item(step: object, reply_code: int) -> bool:
    if reply_code == _NOT_FOUND:
        return step not in (_assert_exchange, _assert_queue)
    return reply_code in _FAULT_OF_THE_ITEM


_ARGUMENT = re.compile(r"inequivalent arg '([^']+)'")
_WANTED = re.compile(r"received (?:the value )?('[^']*'|none)")
_CURRENT = re.compile(r"but current is (?:the value )?('[^']*'?|none)")


def _refusal(vhost: str, entity: str, error: ChannelClosedError) -> TopologyError:
    """Parse RabbitMQ's text of what differs; beyond 255 bytes it is cut."""
    reason = f"{error.reply_code} {error.reply_text}"
    parts = [pattern.search(reason) for pattern in (_ARGUMENT, _WANTED, _CURRENT)]
    argument, wanted, current = (part.group(1) if part else "" for part in parts)
    if not argument or not wanted:
        return TopologyError(vhost, entity, reason)
    return TopologyMismatchError(vhost, entity, reason, argument, wanted, current or "another")


def _name(item: ExchangeConfig | QueueConfig | BindingConfig) -> str:
    match item:
        case ExchangeConfig():
            return f"exchange {item.qualified_name!r}"
        case QueueConfig():
            return f"queue {item.qualified_name!r}"
    keys, ends = ", ".join(item.qualified_keys), (item.qualified_source, item.qualified_destination)
    return f"binding {ends[0]!r}[{keys}] -> {item.destination_type} {ends[1]!r}"


async def _assert_exchange(channel: Channel, exchange: ExchangeConfig) -> None:
    options = exchange.options
    await channel.declare_exchange(
        exchange.qualified_name,
        exchange.type,
        durable=options.durable,
        auto_delete=options.auto_delete,
        internal=options.internal,
        arguments=exchange.arguments,
    )


async def _check_exchange(channel: Channel, exchange: ExchangeConfig) -> None:
    await channel.check_exchange(exchange.qualified_name)


async def _delete_exchange(channel: Channel, exchange: ExchangeConfig) -> None:
    await channel.delete_exchange(exchange.qualified_name)


async def _assert_queue(channel: Channel, queue: QueueConfig) -> None:
    options = queue.options
    await channel.declare_queue(
        queue.qualified_name,
        durable=options.durable,
        exclusive=options.exclusive,
        auto_delete=options.auto_delete,
        arguments=queue.arguments,
    )


async def _check_queue(channel: Channel, queue: QueueConfig) -> None:
    await channel.check_queue(queue.qualified_name)


async def _purge_queue(channel: Channel, queue: QueueConfig) -> None:
    await channel.purge_queue(queue.qualified_name)


async def _delete_queue(channel: Channel, queue: QueueConfig) -> None:
    await channel.delete_queue(queue.qualified_name)


async def _bind(channel: Channel, binding: BindingConfig) -> None:
    bind = channel.bind_exchange if binding.destination_type == "exchange" else channel.bind_queue
    ends = binding.qualified_destination, binding.qualified_source
    for key in binding.qualified_keys:
        await bind(*ends, key, binding.options.arguments)
