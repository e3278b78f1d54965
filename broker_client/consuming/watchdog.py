"""Checks whether the broker still has our consumer, since a broker may lose one silently.

What AMQP tells is how many consumers a queue has. None, while we believe to be one, means that
ours is gone; where others consume too, the loss of ours cannot be seen.
"""

from __future__ import annotations

import logging

from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.stream_position import OFFSET
from broker_client.errors import BrokerClientError, ChannelClosedError
from broker_client.transport.base import Link

log: logging.Logger = logging.getLogger("broker_client.subscription")

_SOON = 1.0  # seconds until the first question, and to the next after an answer of none
_NOT_FOUND = 404
_NOT_FOR_US = (403, 405)  # refused, or exclusive to another connection


class Watchdog:
    """Asks for the number of consumers of a subscription's queue, from time to time.

    A count of none is believed when it comes twice. Where it comes again after a new consumer was
    made, and ours was never counted, the broker counts otherwise than we think, as RabbitMQ does
    for streams: then it is not asked any more.
    """

    def __init__(self, setup: ConsumingSetup) -> None:
        self._name, self._queue = setup.config.name, setup.queue
        self._period = setup.config.check_interval
        self._off = (
            not self._period or setup.is_stream or OFFSET in setup.config.options.all_arguments
        )
        self._none_counted = 0  # times in a row
        self._resubscribed = False  # for lack of a count, and not counted since
        self._first = True

    def __repr__(self) -> str:
        return f"<Watchdog {self._name}: {'off' if self._off else 'on'}>"

    def wait_for(self, link: Link) -> float | None:
        """Seconds until the broker is to be asked; None is never."""
        if self._off or link.capabilities.lasting_consumers:
            return None
        return min(_SOON, self._period) if self._first or self._none_counted else self._period

    def started(self) -> None:
        """A new consumer has started."""
        self._first, self._none_counted = True, 0

    async def is_lost(self, link: Link) -> bool:
        """Ask the broker; True if the consumer is gone.

        On a channel of its own, since a queue that is missing closes the channel.
        """
        self._first = False
        try:
            channel = await link.open_channel()
        except BrokerClientError as error:
            log.debug("%r: %s", self, error)
            return False
        try:
            count = (await channel.check_queue(self._queue)).consumer_count
        except ChannelClosedError as error:
            if error.reply_code in _NOT_FOR_US:
                self._stop(str(error))
            return error.reply_code == _NOT_FOUND
        except BrokerClientError as error:
            log.debug("%r: %s", self, error)
            return False
        finally:
            channel.abort()
        return self._judge(count)

    def _judge(self, count: int) -> bool:
        if count:
            self._none_counted, self._resubscribed = 0, False
            return False
        self._none_counted += 1
        if self._none_counted < 2:
            return False
        if self._resubscribed:
            self._stop("the broker counts no consumer, and a new one did not change that")
            return False
        self._resubscribed = True
        return True

    def _stop(self, why: str) -> None:
        self._off = True
        log.warning(
            "subscription %s: the check for a lost consumer on %s is turned off: %s",
            self._name,
            self._queue,
            why,
        )
