"""The scan loop: wakes when something is due, and handles it in slices between which the event
loop is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_client.core.engine import Engine
from broker_client.core.scan import ScanPolicy, ScanSettings
from broker_client.runtime.clock import Clock


class Scanner:
    """One timer, which is set only while something is due.

    A look chooses up to `selection_count` queues, those longest overdue first, and handles as many
    of them in one turn of the event loop as there are workers. When more than `dirty_percent` of
    them had something due it chooses again, at once; else it waits for the next deadline.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        settings: ScanSettings,
        wake: Callable[[], None],
    ) -> None:
        """
        Args:
            engine: is scanned.
            clock: where `now` comes from.
            settings: nsq's settings.
            wake: carries out what the engine decided.
        """
        self._engine, self._clock, self._wake = engine, clock, wake
        self.policy: ScanPolicy = ScanPolicy(settings)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._chosen = self._dirty = 0
        self._looking = False
        self.looks: int = 0
        """Wake-ups so far."""

    @property
    def timer_at(self) -> float | None:
        """Time of the next scan, or None while nothing is due."""
        return None if self._timer is None else self._timer_at

    def schedule(self) -> None:
        """Schedule a scan for the next due time.

        A timer that is early is left alone: it looks again when it fires, which costs less than
        moving it with every acknowledgement.
        """
        if self._looking:
            return
        deadline = self._engine.next_deadline()
        at = None if deadline is None else self.policy.wake_at(deadline)
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            # The event loop's clock may stand still while the machine is suspended; ours does not.
            delay = min(max(0.0, at - self._clock.now()), self.policy.settings.refresh_interval)
            self._timer = self._loop.call_later(delay, self._look)

    def stop(self) -> None:
        """Stop scanning."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._clock.now()
        self.looks += 1
        self.policy.look(now)
        self.policy.refresh(self._engine.queue_count, now)
        self._chosen = self._dirty = 0
        self._turn()

    def _turn(self) -> None:
        """One worker round; more follow until the selection is done, or if dirty."""
        self._timer = None
        policy = self.policy
        left = policy.settings.selection_count - self._chosen
        want = min(policy.workers, left)
        self._looking = False
        self._wake()  # also schedules the next look, should the engine raise
        chosen, dirty = self._engine.scan(self._clock.now(), want)
        self._chosen += chosen
        self._dirty += dirty
        self._looking = chosen == want
        if self._looking and self._chosen >= policy.settings.selection_count:
            self._looking = policy.again(self._chosen, self._dirty)
            self._chosen = self._dirty = 0
            if not self._looking:
                policy.rest()
        if self._looking:
            self._timer_at = self._clock.now()
            self._timer = self._loop.call_soon(self._turn)
