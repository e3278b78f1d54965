"""Publishes that arrive later, on any broker.

The built-in broker holds a message with `x-delay` itself. RabbitMQ cannot without a plug-in, so
there a message waits in a queue of its own delay: published with its own routing key to a fanout
exchange, it lies in the one queue behind it until its TTL is over and is then dead-lettered, with
that routing key, to the exchange it was meant for. One queue a delay, since RabbitMQ expires
messages at the head of a queue only: behind a long delay, a short one would wait.

The pair is made when first wanted, and goes by itself (`x-expires`) once it has not been wanted
for a while; it is declared again well before that.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from broker_client.errors import InvalidMessageError, TransportError
from broker_client.message import Outgoing
from broker_client.transport.base import Link

MAX_DELAY = 2**31 / 1000  # seconds; RabbitMQ takes a TTL of fewer than 2**32 ms
_KEEP = 600.0  # seconds a pair outlives its longest possible message
_DECLARE_EVERY = 300.0  # seconds after which a pair that is in use is declared again


@dataclass(frozen=True, slots=True)
class DelayStep:
    """The waiting place of one exchange and one delay."""

    exchange: str
    milliseconds: int

    @property
    def name(self) -> str:
        """Of the exchange and of the queue behind it."""
        return f"broker_client.delay.{self.milliseconds}.{self.exchange or 'default'}"


def check_delay(delay: float) -> None:
    """Raise InvalidMessageError for a delay that no broker keeps; it is never taken as none."""
    if not isinstance(delay, int | float) or not 0 <= delay < MAX_DELAY:
        raise InvalidMessageError(
            "delay", f"is {delay!r}; a number of seconds from 0 to {MAX_DELAY:.0f} is needed"
        )


def step_for(exchange: str, delay: float) -> DelayStep:
    """The step of `delay` seconds: up to two digits more than asked, never less.

    Rounded up to two significant digits, so that delays computed by a back-off share queues:
    1.234 s waits 1.3 s.
    """
    milliseconds = max(1, math.ceil(delay * 1000))
    unit = 10 ** max(0, len(str(milliseconds)) - 2)
    return DelayStep(exchange, -(-milliseconds // unit) * unit)


def delayed_by_header(outgoing: Outgoing, delay: float) -> Outgoing:
    """`outgoing` for a broker that holds messages itself."""
    headers = {**(outgoing.properties.headers or {}), "x-delay": math.ceil(delay * 1000)}
    return outgoing._replace(properties=outgoing.properties._replace(headers=headers))


class DelayQueues:
    """The waiting places of one vhost: made when wanted, and again with each new link."""

    def __init__(self) -> None:
        self._wanted: dict[DelayStep, float] = {}  # loop time of the last publish
        self._declared: dict[DelayStep, tuple[Link, float]] = {}
        self._lock = asyncio.Lock()

    async def prepare(self, link: Link | None, step: DelayStep) -> None:
        """Have the waiting place of `step` there before anything is published to it.

        Args:
            link: the one that is up; None leaves it to `restore`, which every new link gets
                before publishing goes on.

        Raises:
            TransportError: the broker refused. A link that is lost meanwhile is no error.
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
        """Declare on a new link what may still be wanted.

        Raises:
            TransportError: the link failed, or the broker refused.
        """
        now = asyncio.get_running_loop().time()
        self._wanted = {step: at for step, at in self._wanted.items() if now - at < _KEEP}
        if self._wanted:
            async with self._lock:
                await self._declare(link, list(self._wanted))

    def _is_there(self, link: Link, step: DelayStep, now: float) -> bool:
        known = self._declared.get(step)
        return known is not None and known[0] is link and now - known[1] < _DECLARE_EVERY

    async def _declare(self, link: Link, steps: list[DelayStep]) -> None:
        now = asyncio.get_running_loop().time()
        channel = await link.open_channel()
        try:
            for step in steps:
                await channel.declare_exchange(step.name, "fanout", durable=True)
                await channel.declare_queue(
                    step.name,
                    durable=True,
                    arguments={
                        "x-message-ttl": step.milliseconds,
                        "x-expires": step.milliseconds + round((_KEEP + _DECLARE_EVERY) * 1000),
                        "x-dead-letter-exchange": step.exchange,
                    },
                )
                await channel.bind_queue(step.name, step.name, "")
                self._declared[step] = (link, now)
        except BaseException:
            channel.abort()
            raise
        await channel.close()
