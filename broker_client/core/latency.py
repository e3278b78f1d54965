"""How long messages take from their queue's acceptance to their acknowledgement, over a sliding
window (nsq's end-to-end processing latency)."""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter
from collections.abc import Iterable

from broker_client.runtime.slotted import slotted

PERCENTILES = (0.5, 0.9, 0.95, 0.99)

_BATCH = 512
_UPPER_HALVES = slice(1 if sys.byteorder == "little" else 0, None, 2)


@slotted
class LatencyStats:
    """Times from acceptance to acknowledgement, in seconds, within 0.4 % of the true ones."""

    count: int
    """Acknowledgements in the window."""
    percentiles: tuple[tuple[float, float], ...]
    """(quantile, seconds), such as (0.99, 0.012); empty when there were none."""

    def at(self, quantile: float) -> float | None:
        """The time below which this share of the messages was; None when it is not known."""
        return dict(self.percentiles).get(quantile)


NO_LATENCY = LatencyStats(0, ())


class LatencyWindow:
    """Counts in buckets that widen with the value, for two halves of the window.

    As nsq's two streams: one half fills while the other is kept, so what is reported covers
    between half the window and the whole of it. The bucket of a value is the upper half of its
    32-bit float (sign, exponent, seven bits of the fraction), so that a batch is put into buckets
    by the C code of `array` and `Counter`: cheaper than any sketch library, and unlike a list of
    the last samples it covers all of the window, also in a busy queue (`bench/core/latency.py`,
    figures in docs/core.md).
    """

    __slots__ = ("_half", "_new", "_old", "_pending", "_turns_at")

    def __init__(self, window: float) -> None:
        """
        Args:
            window: seconds.
        """
        self._half = window / 2
        self._turns_at = float("-inf")
        self._pending = array("f")
        self._new: Counter[int] = Counter()
        self._old: Counter[int] = Counter()

    def add(self, seconds: float, now: float) -> None:
        """Count one message that took `seconds`."""
        if now >= self._turns_at:
            self._turn(now)
        pending = self._pending
        pending.append(seconds)
        if len(pending) >= _BATCH:
            self._fold()

    def stats(
        self, now: float | None = None, quantiles: Iterable[float] = PERCENTILES
    ) -> LatencyStats:
        """A snapshot of the window as it is at `now`, or was when something was added last."""
        if now is not None and now >= self._turns_at:
            self._turn(now)
        self._fold()
        counts = self._old + self._new
        total = counts.total()
        if not total:
            return NO_LATENCY
        buckets = sorted(counts)  # positive floats are ordered as their bits are
        percentiles = []
        for quantile in sorted(quantiles):
            rank, below = quantile * total, 0
            for bucket in buckets:
                below += counts[bucket]
                if below >= rank:
                    percentiles.append((quantile, _middle(bucket)))
                    break
        return LatencyStats(total, tuple(percentiles))

    def _turn(self, now: float) -> None:
        """Begin a new half; after a long silence both are empty."""
        self._fold()
        self._old = self._new if now < self._turns_at + self._half else Counter()
        self._new = Counter()
        self._turns_at = now + self._half

    def _fold(self) -> None:
        halves = array("H", self._pending.tobytes())
        self._new.update(halves[_UPPER_HALVES])
        del self._pending[:]


def _middle(bucket: int) -> float:
    middle: float = struct.unpack("=f", struct.pack("=I", bucket << 16 | 1 << 15))[0]
    return middle
