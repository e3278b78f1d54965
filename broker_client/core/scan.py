"""The scan policy: when to scan, how many queues, and whether to repeat at once.

The settings are those of nsq's queueScanLoop and so are their defaults. One
thing differs: nsq draws queues at random and finds out whether anything of theirs is due, so with
ten thousand queues a time-out waits for most of a minute until its queue is drawn. Here queues
are chosen among those that have something due, the longest overdue first; see `Schedule`.
"""

from __future__ import annotations

from broker_client.runtime.slotted import slotted


@slotted
class ScanSettings:
    """nsq's names without `queue-scan-`, nsq's defaults; times in seconds."""

    interval: float = 0.1
    """Where more deadlines fall into one interval than `selection_count`, those after wait for
    its end and are handled together. Below that, each is handled when it comes."""
    refresh_interval: float = 5.0
    """Time after which the number of workers is fitted to the number of queues again, and longest
    sleep while something is due later: so a machine that was suspended soon notices."""
    selection_count: int = 20
    """Queues chosen at a time."""
    dirty_percent: float = 0.25
    """Choose again at once while more than this share of those chosen had something due."""
    worker_pool_max: int = 4
    """Most workers: queues handled in one turn of the event loop."""


def ideal_pool_size(queues: int, most: int) -> int:
    """nsq's resizePool: a quarter of the queues, at least 1, at most `most`."""
    return max(1, min(int(queues * 0.25), most))


class ScanPolicy:
    """Decides which queues to scan; the owner of the clock and the queues scans them."""

    def __init__(self, settings: ScanSettings) -> None:
        self.settings = settings
        self.workers: int = 1
        """Queues to handle before others get a turn."""
        self._refresh_at = float("-inf")
        self._interval_ends = float("-inf")
        self._looks = 0

    def refresh(self, queues: int, now: float) -> None:
        """Fit the number of workers to the number of queues, once in `refresh_interval`."""
        if now >= self._refresh_at:
            self._refresh_at = now + self.settings.refresh_interval
            self.workers = ideal_pool_size(queues, self.settings.worker_pool_max)

    def look(self, now: float) -> None:
        """A look is being taken at `now`, woken by a deadline."""
        if now >= self._interval_ends:
            self._interval_ends = now + self.settings.interval
            self._looks = 0
        self._looks += 1

    def wake_at(self, deadline: float) -> float:
        """When to look for what is due at `deadline`: then, or at the end of a busy interval.

        So a quiet node has exact timers, and a busy one no more than `selection_count` wake-ups
        an interval; nothing is later than one interval.
        """
        if self._looks >= self.settings.selection_count:
            return max(deadline, self._interval_ends)
        return deadline

    def rest(self) -> None:
        """Look again only at the end of the interval, whatever is due."""
        self._looks = self.settings.selection_count

    def again(self, chosen: int, dirty: int) -> bool:
        """Whether to choose again at once: nsq compares with a strict `>`."""
        return chosen > 0 and dirty / chosen > self.settings.dirty_percent
