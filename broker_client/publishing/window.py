"""The window: how many publishes a sender may have unconfirmed on its channel."""

from __future__ import annotations

_SLOW = 1.0  # seconds to a confirm from which on the window shrinks, and that it aims at
_MEASURE = 0.25  # seconds over which the rate of confirms is taken


class Window:
    """A number that grows with confirms and shrinks where these take long.

    On a slow link what is sent first fills every buffer on the way, and waits there longer than a
    publish may take: then each is late, though all arrive. So no more is sent than the broker has
    been confirming within a second. After a channel was given up the window begins at one and
    doubles with each round of confirms, so that what is sent again is little as long as it fails.

    Args:
        most: publishes at most.
    """

    __slots__ = ("_count", "_most", "_since", "latency", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0  # confirms since `_since`
        self._since = 0.0
        self.size: int = most
        """Publishes that may be unconfirmed."""
        self.latency: float = 0.0
        """Recent time from sending to the confirm, in seconds."""

    def confirmed(self, count: int, latency: float, now: float) -> None:
        """`count` were confirmed at `now`, the last of them after `latency` seconds."""
        rising = latency > self.latency
        self.latency += (latency - self.latency) / 4 if rising else latency - self.latency
        if latency < _SLOW:
            self.size = min(self._most, self.size + count)
            self._count, self._since = 0, now
            return
        elapsed = now - self._since
        if elapsed > 4 * _MEASURE:  # nothing came for a while, which tells no rate
            self._count, self._since = 0, now
            return
        self._count += count
        if elapsed >= _MEASURE:
            rate = self._count / elapsed
            self.size = max(1, min(self.size, round(rate * _SLOW)))
            self._count, self._since = 0, now

    def restart(self) -> None:
        """Restart at one, after a lost channel."""
        self.size, self.latency = 1, 0.0
