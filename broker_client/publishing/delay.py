"""Delayed publishes, on any broker.

The built-in broker holds a message with `x-delay` itself. On RabbitMQ a message waits in a delay
queue, one for each exchange and delay: see `connection.delay_queues`.
"""

from __future__ import annotations

import math

from broker_client.connection.delay_queues import DelayStep
from broker_client.errors import InvalidMessageError
from broker_client.message import Outgoing

MAX_DELAY = 2**31 / 1000  # seconds; RabbitMQ takes a TTL of fewer than 2**32 ms


def check_delay(delay: float) -> None:
    """Raise InvalidMessageError for a delay that no broker supports."""
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
