"""Which errors are worth another try, and how long to wait before it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_never,
    wait_exponential_jitter,
)
from tenacity.wait import wait_base

from broker_client.config import BackoffConfig, RetryConfig
from broker_client.errors import BrokerClientError


def is_retryable(error: BaseException) -> bool:
    """True for our own errors that say so. Never for cancellation, never for a bug."""
    return isinstance(error, BrokerClientError) and error.retryable


def growing(config: BackoffConfig, failures: int) -> float:
    """Seconds to wait after so many failures: ``min * factor ** failures``, `max` at most."""
    try:
        return min(config.max, config.min * config.factor**failures)
    except OverflowError:
        return config.max


class Backoff(wait_base):
    """The waits of one loop, growing from failure to failure until `reset`.

    It outlives the outages of its loop, so that a link which comes up and dies again at once
    goes on waiting longer; whoever owns it resets it after the link has stayed up.

    `exponential` waits ``min * factor ** n`` and up to `min` more at random, `max` at most;
    `linear` waits at random between `min` and `max` (rascal's two strategies).
    """

    def __init__(self, config: BackoffConfig) -> None:
        self._config = config
        self._failures = 0
        self._wait = wait_exponential_jitter(
            multiplier=config.min, max=config.max, exp_base=config.factor, jitter=config.min
        )

    def __repr__(self) -> str:
        return f"<Backoff: {self._failures} failures>"

    @property
    def failures(self) -> int:
        """Failures since the last reset."""
        return self._failures

    def __call__(self, retry_state: RetryCallState) -> float:
        return self.next()

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        self._failures += 1
        if self._config.strategy == "linear":
            return random.uniform(self._config.min, self._config.max)  # noqa: S311 - no secret
        state = RetryCallState(AsyncRetrying(), None, (), {})
        state.attempt_number = self._failures
        return self._wait(state)

    def reset(self) -> None:
        """Begin again from `min`."""
        self._failures = 0


def reconnect_policy(
    config: RetryConfig,
    backoff: Backoff | Callable[[RetryCallState], float],
    *,
    sleep: Callable[[float], Awaitable[None]],
) -> AsyncRetrying:
    """A fresh policy for one outage.

    Fresh, because tenacity keeps the state of a run in it: shared between tasks it swallows
    failures.
    """
    return AsyncRetrying(
        retry=retry_if_exception(is_retryable),
        wait=backoff,
        stop=stop_never if config.enabled else stop_after_attempt(1),
        sleep=sleep,
        reraise=True,
    )
