"""Deliveries that are about to time out: extended while handlers or recovery run, or warned about.

A time-out that only the broker knows, such as RabbitMQ's own `consumer_timeout`, is not seen here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection

from broker_client.consuming.delivery import UnackedDelivery
from broker_client.consuming.reports import Reports
from broker_client.errors import BrokerClientError

SHARE = 0.8
"""Share of the time after which a delivery is warned of."""
_STEP = 0.02  # of the time: looks are no closer together, however many deliveries there are


class AckDeadlines:
    """One timer for all unacked deliveries of a subscription, while it has any.

    Args:
        limit: seconds a delivery may stay unacked.
        unacked: the deliveries that are unacked, a live view.
        reports: notified once of each delivery whose time is nearly over (`ack_due`).
    """

    def __init__(
        self, limit: float, unacked: Collection[UnackedDelivery], reports: Reports
    ) -> None:
        self._limit = limit
        self._warned_at = limit * SHARE
        self._unacked = unacked
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_overdue(self) -> bool:
        """True while a delivery that was warned about is unsettled."""
        return any(each.ack_deadline == math.inf for each in self._unacked)

    def start(self, entry: UnackedDelivery, left: float | None = None) -> None:
        """Start the time-out of `entry`: `left` seconds, by default all of its time."""
        wait = self._warned_at if left is None else left - self._limit + self._warned_at
        entry.ack_deadline = self._loop.time() + wait
        if self._timer is None:
            self._timer = self._loop.call_at(entry.ack_deadline, self._look)

    def stop(self) -> None:
        """Stop: nothing is unacked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        passed = [each for each in self._unacked if each.ack_deadline <= now]
        ahead = min(
            (e.ack_deadline for e in self._unacked if e.ack_deadline > now), default=math.inf
        )
        self._timer = None
        if ahead < math.inf:
            self._timer = self._loop.call_at(max(ahead, now + self._limit * _STEP), self._look)
        for each in passed:
            left = max(each.ack_deadline + self._limit * (1 - SHARE) - now, 0.0)
            if each.is_in_work and self._extend(each):
                continue
            each.ack_deadline = math.inf
            self._reports.warn(
                "ack_due",
                each.message,
                left,
                text="message %s is unsettled, and its broker waits %.3g s more",
                values=(each.message.message_id, left),
            )

    def _extend(self, entry: UnackedDelivery) -> bool:
        """Extend the broker's time-out of `entry`; False if that is not possible."""
        try:
            left = entry.channel.touch(entry.message.delivery.delivery_tag)
        except BrokerClientError:
            return False
        if left <= self._limit * (1 - SHARE) + self._limit * _STEP:
            return False  # the broker's limit is near
        self.start(entry, left)
        return True
