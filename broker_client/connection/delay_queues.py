"""Delay queues, for brokers that cannot delay a message themselves (RabbitMQ).

A message is published with its own routing key to a fanout exchange and lies in the one queue
behind it until the queue's TTL is over. The broker then dead-letters it, with that routing key, to
the exchange it is for. There is one queue for each delay, since RabbitMQ expires messages only at
the head of a queue: a short delay would wait behind a long one.

Exchange and queue are declared when first needed and again with each new link. The queue deletes
itself (`x-expires`) after it has not been used for a while; it is declared again well before that.
"""

from __future__ import annotations

import asyncio
import logging

from broker_client.errors import ChannelClosedError, TopologyError, TransportError
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Channel, Link

log: logging.Logger = logging.getLogger("broker_client.vhost")

PREFIX = "broker_client.delay."
"""Prefix of the names of delay queues, for permissions."""

_KEEP = 600.0  # seconds a pair outlives its longest possible message
_DECLARE_EVERY = 300.0  # seconds after which a pair that is in use is declared again
_ACCESS_REFUSED = 403


@slotted
class DelayStep:
    """The delay queue of one exchange and one delay."""

    exchange: str
    milliseconds: int

    @property
    def name(self) -> str:
        """Name of the exchange and of the queue behind it."""
        return f"{PREFIX}{self.milliseconds}.{self.exchange or 'default'}"


class DelayQueues:
    """The delay queues of one vhost: declared when needed, and again with each new link."""

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._wanted: dict[DelayStep, float] = {}  # loop time of the last publish
        self._declared: dict[DelayStep, tuple[Link, float]] = {}
        self._lock = asyncio.Lock()

    async def prepare(self, link: Link | None, step: DelayStep) -> None:
        """Declare the delay queue of `step` before anything is published to it.

        Args:
            link: the present link; None leaves it to `restore`, which every new link gets
                before publishing goes on.

        Raises:
            TopologyError: the user has no permission for delay queues.
            TransportError: the broker refused. A link that is lost meanwhile is not an error.
        """
        now = self._wanted[step] = asyncio.get_running_loop().time()
        if link is None or self._is_there(link, step, now):
            return
        async with self._lock:
            if self._is_there(link, step, now):
                return
            try:
                await self._declare(link, [step])
            except TransportError:
                if link.is_open:
                    raise

    async def restore(self, link: Link) -> None:
        """Declare the delay queues that may still be needed on a new link.

        A permission that is missing is logged and holds up nothing else: the next delayed
        publish raises it.

        Raises:
            TransportError: the link failed, or the broker refused for another reason.
        """
        now = asyncio.get_running_loop().time()
        self._wanted = {step: at for step, at in self._wanted.items() if now - at < _KEEP}
        if self._wanted:
            async with self._lock:
                try:
                    await self._declare(link, list(self._wanted))
                except TopologyError as error:
                    log.warning("%s", error)

    def _is_there(self, link: Link, step: DelayStep, now: float) -> bool:
        known = self._declared.get(step)
        return known is not None and known[0] is link and now - known[1] < _DECLARE_EVERY

    async def _declare(self, link: Link, steps: list[DelayStep]) -> None:
        now = asyncio.get_running_loop().time()
        channel = await link.open_channel()
        try:
            for step in steps:
                await self._declare_one(channel, step)
                self._declared[step] = (link, now)
        except BaseException:
            channel.abort()
            raise
        await channel.close()

    async def _declare_one(self, channel: Channel, step: DelayStep) -> None:
        name = step.name
        # RabbitMQ's access control: which permission an operation takes on which resource.
        needed = f"configure permission for {name!r}"
        try:
            await channel.declare_exchange(name, "fanout", durable=True)
            # One whose messages are dead-lettered also has to be read, and the target written.
            needed += f", read permission for it, and write permission for {step.exchange!r}"
            await channel.declare_queue(
                name,
                durable=True,
                arguments={
                    "x-message-ttl": step.milliseconds,
                    "x-expires": step.milliseconds + round((_KEEP + _DECLARE_EVERY) * 1000),
                    "x-dead-letter-exchange": step.exchange,
                },
            )
            needed = f"write and read permission for {name!r}"
            await channel.bind_queue(name, name, "")
        except ChannelClosedError as error:
            if error.reply_code != _ACCESS_REFUSED:
                raise
            reason = (
                f"{error.reply_text}; this takes {needed}. Delayed publishes need configure, "
                f"write and read permission for names that begin with {PREFIX!r}"
            )
            raise TopologyError(self._vhost, f"delay queue {name!r}", reason) from error
