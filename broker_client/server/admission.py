"""Admission of clients: counts of connections, and addresses that fail to log in too often."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from time import monotonic

from broker_client.config.server import ServerConfig
from broker_client.core.replies import not_allowed
from broker_client.errors import ReplyError

_REMEMBERED = 10_000  # addresses with failures


class Admission:
    """Counts the connections that are open, by user, and the logins that failed, by address."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = monotonic) -> None:
        """
        Args:
            config: the limits.
            clock: time in seconds.
        """
        self._config, self._clock = config, clock
        self._users: Counter[str] = Counter()
        self._failures: dict[str, deque[float]] = {}

    @property
    def connection_count(self) -> int:
        """Connections with an open vhost."""
        return self._users.total()

    # ---------------------------------------------------------------- logins

    def is_shut_out(self, address: str) -> bool:
        """True while `address` has failed to log in too often within the last second."""
        failures = self._failures.get(address)
        if failures is None:
            return False
        self._forget_old(failures)
        if not failures:
            del self._failures[address]
        return len(failures) >= self._config.max_login_failures

    def login_failed(self, address: str) -> None:
        """Count a refused login."""
        if not self._config.max_login_failures:
            return
        if address not in self._failures and len(self._failures) >= _REMEMBERED:
            del self._failures[next(iter(self._failures))]  # the oldest
        failures = self._failures.setdefault(address, deque())
        self._forget_old(failures)
        failures.append(self._clock())

    def _forget_old(self, failures: deque[float]) -> None:
        now = self._clock()
        while failures and failures[0] <= now - 1.0:
            failures.popleft()

    # ---------------------------------------------------------------- connections

    def admit(self, user: str, vhost: str) -> None:
        """Count a connection of `user`, until `leave`.

        Raises:
            ReplyError: 530 where that is one too many, with RabbitMQ's texts.
        """
        most, most_of_user = self._config.max_connections, self._config.max_connections_per_user
        if most and self.connection_count >= most:
            raise _refused(vhost, user, f"node connection limit ({most}) is reached")
        if most_of_user and self._users[user] >= most_of_user:
            raise not_allowed(
                f"Connection refused for user '{user}': user connection limit ({most_of_user}) is "
                "reached"
            )
        self._users[user] += 1

    def leave(self, user: str) -> None:
        """A connection that was admitted has ended."""
        self._users[user] -= 1
        if not self._users[user]:
            del self._users[user]


def _refused(vhost: str, user: str, why: str) -> ReplyError:
    return not_allowed(f"access to vhost '{vhost}' refused for user '{user}': {why}")
