"""Exchanges, queues and bindings made as declared: assert, check, purge, delete.

The order is rascal's (R-211): assert exchanges, check exchanges, assert queues, check queues,
purge, bind. Each phase is spread over `concurrency` channels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from broker_client.config import BindingConfig, ExchangeConfig, QueueConfig, VhostConfig
from broker_client.errors import ChannelClosedError, TopologyError
from broker_client.transport.base import Channel, Link

log = logging.getLogger("broker_client.topology")

T = TypeVar("T", ExchangeConfig, QueueConfig, BindingConfig)
Step = Callable[[Channel, T], Awaitable[object]]


class Topology:
    """What one vhost declares."""

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

    async def establish(self, link: Link, *, purge: bool) -> None:
        """Make everything so, and fail where it cannot be.

        Args:
            link: where.
            purge: empty the queues that ask for it. True the first time only: a reconnect that
                emptied queues would lose what was published meanwhile (differs from rascal,
                R-054).

        Raises:
            TopologyError: something is there with other settings, or is missing.
            TransportError: the link failed meanwhile.
        """
        exchanges, queues = self._exchanges, self._queues
        async with self._channels(link) as run:
            await run(_assert_exchange, [each for each in exchanges if each.assert_])
            await run(_check_exchange, [each for each in exchanges if each.check])
            await run(_assert_queue, [each for each in queues if each.assert_])
            await run(_check_queue, [each for each in queues if each.check])
            if purge:
                await run(_purge_queue, [each for each in queues if each.purge])
            await run(_bind, self._bindings)

    async def purge(self, link: Link) -> int:
        """Empty every queue; returns how many messages went."""
        counts: list[int] = []

        async def purge_one(channel: Channel, queue: QueueConfig) -> None:
            counts.append(await channel.purge_queue(queue.name))

        async with self._channels(link) as run:
            await run(purge_one, self._queues)
        return sum(counts)

    async def delete(self, link: Link) -> None:
        """Delete every exchange and queue."""
        async with self._channels(link) as run:
            await run(_delete_exchange, self._exchanges)
            await run(_delete_queue, self._queues)

    @asynccontextmanager
    async def _channels(self, link: Link) -> AsyncIterator[_Runner]:
        runner = _Runner(self._vhost, [])
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
    """Carries out one phase: item i on channel i modulo their number (R-012)."""

    def __init__(self, vhost: str, channels: list[Channel]) -> None:
        self._vhost = vhost
        self.channels = channels

    async def __call__(self, step: Step[T], items: Sequence[T]) -> None:
        if not items:
            return
        count = len(self.channels)
        shares = [
            self._share(channel, step, items[index::count])
            for index, channel in enumerate(self.channels)
        ]
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

    async def _share(self, channel: Channel, step: Step[T], items: Sequence[T]) -> None:
        for item in items:
            try:
                await step(channel, item)
            except ChannelClosedError as error:
                if not error.reply_code:
                    raise  # the link is gone, and that is no fault of the item
                reason = f"{error.reply_code} {error.reply_text}"
                raise TopologyError(self._vhost, _name(item), reason) from error


def _name(item: ExchangeConfig | QueueConfig | BindingConfig) -> str:
    match item:
        case ExchangeConfig():
            return f"exchange {item.name!r}"
        case QueueConfig():
            return f"queue {item.name!r}"
    keys = ", ".join(item.binding_keys)
    return f"binding {item.source!r}[{keys}] -> {item.destination_type} {item.destination!r}"


async def _assert_exchange(channel: Channel, exchange: ExchangeConfig) -> None:
    options = exchange.options
    await channel.declare_exchange(
        exchange.name,
        exchange.type,
        durable=options.durable,
        auto_delete=options.auto_delete,
        internal=options.internal,
        arguments=options.all_arguments,
    )


async def _check_exchange(channel: Channel, exchange: ExchangeConfig) -> None:
    await channel.check_exchange(exchange.name)


async def _delete_exchange(channel: Channel, exchange: ExchangeConfig) -> None:
    await channel.delete_exchange(exchange.name)


async def _assert_queue(channel: Channel, queue: QueueConfig) -> None:
    options = queue.options
    await channel.declare_queue(
        queue.name,
        durable=options.durable,
        exclusive=options.exclusive,
        auto_delete=options.auto_delete,
        arguments=options.all_arguments,
    )


async def _check_queue(channel: Channel, queue: QueueConfig) -> None:
    await channel.check_queue(queue.name)


async def _purge_queue(channel: Channel, queue: QueueConfig) -> None:
    await channel.purge_queue(queue.name)


async def _delete_queue(channel: Channel, queue: QueueConfig) -> None:
    await channel.delete_queue(queue.name)


async def _bind(channel: Channel, binding: BindingConfig) -> None:
    bind = channel.bind_exchange if binding.destination_type == "exchange" else channel.bind_queue
    for key in binding.binding_keys:
        await bind(binding.destination, binding.source, key, binding.options.arguments)
