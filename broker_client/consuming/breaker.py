"""A circuit breaker: pauses a subscription whose handlers fail too often (MassTransit's kill
switch)."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from broker_client.config import BreakerConfig
from broker_client.consuming.handle_call import HandleCall, HandleNext
from broker_client.consuming.pauses import Pauses
from broker_client.consuming.reports import Reports
from broker_client.runtime.tasks import TaskGroup

_REASON = "breaker"


class Breaker:
    """Counts the failures of handlers, as middleware around them.

    *closed*: counting. *open*: paused. *trying*: consuming again; the first message that is
    handled decides whether it closes or opens again.
    """

    def __init__(
        self, config: BreakerConfig, pauses: Pauses, reports: Reports, tasks: TaskGroup
    ) -> None:
        """
        Args:
            config: when to open, and for how long.
            pauses: of the subscription's consumer.
            reports: notified as it opens (`tripped`) and closes (`restored`).
            tasks: owner of the tasks that pause and resume.
        """
        self._config = config
        self._pauses = pauses
        self._reports = reports
        self._tasks = tasks
        self._state: Literal["closed", "open", "trying"] = "closed"
        self._calls = self._failures = 0
        self._counting_since = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Breaker {self._state}: {self._failures} of {self._calls} failed>"

    async def around(self, call: HandleCall, call_next: HandleNext) -> Any:
        """Middleware around the handlers."""
        try:
            result = await call_next(call)
        except Exception:
            self._count(failed=True)
            raise
        self._count(failed=call.ack_or_nack.error is not None)
        return result

    def close(self) -> None:
        """Stop: the subscription ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, *, failed: bool) -> None:
        if self._state == "open":
            return  # begun before the pause
        if self._state == "trying":
            if failed:
                self._trip(1, 1)
            else:
                self._state, self._calls, self._failures = "closed", 0, 0
                self._reports.emit("restored")
            return
        now = asyncio.get_running_loop().time()
        if now - self._counting_since >= self._config.window:
            self._counting_since, self._calls, self._failures = now, 0, 0
        self._calls += 1
        self._failures += failed
        enough = self._calls >= self._config.min
        if enough and self._failures >= self._config.ratio * self._calls:
            self._trip(self._failures, self._calls)

    def _trip(self, failures: int, calls: int) -> None:
        self._state = "open"
        self._reports.warn(
            "tripped",
            failures,
            calls,
            text="%d of %d messages failed; consuming pauses for %g s",
            values=(failures, calls, self._config.pause),
        )
        self._pauses.hold(_REASON)
        self._tasks.spawn(self._pauses.pause(_REASON), "breaker: pause")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._config.pause, self._try_again)

    def _try_again(self) -> None:
        self._state, self._timer = "trying", None
        self._tasks.spawn(self._pauses.resume(_REASON), "breaker: resume")
