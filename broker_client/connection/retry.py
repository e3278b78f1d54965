"""Which errors are retryable, and how long to wait."""

from __future__ import annotations

import random

from broker_client.config import BackoffConfig
from broker_client.errors import BrokerClientError


def is_retryable(error: BaseException) -> bool:
    """True for our own retryable errors. Never for cancellation, never for a bug."""
    return isinstance(error, BrokerClientError) and error.retryable


def growing(config: BackoffConfig, failures: int) -> float:
    """Seconds to wait after so many failures: ``min * factor ** failures``, `max` at most."""
    try:
        return min(config.max, config.min * config.factor**failures)
    except OverflowError:
        return config.max


class Backoff:
    """Waits that grow from failure to failure until `reset`.

    `exponential` waits ``min * factor ** n`` and up to `min` more at random, `max` at most;
    `linear` waits at random between `min` and `max` (rascal's two strategies). The random part
    spreads the clients of a broker that comes back.
    """

    def __init__(self, config: BackoffConfig) -> None:
        self._config = config
        self.failures: int = 0
        """Failures since the last reset."""

    def __repr__(self) -> str:
        return f"<Backoff: {self.failures} failures>"

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        config, failures = self._config, self.failures
        self.failures += 1
        if config.strategy == "linear":
            return random.uniform(config.min, config.max)  # noqa: S311 - no secret
        jitter = random.uniform(0.0, config.min)  # noqa: S311 - no secret
        return min(config.max, growing(config, failures) + jitter)

    def reset(self) -> None:
        """Start again from `min`."""
        self.failures = 0
