"""Sessions of logged-in users, in memory; they end with the process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from time import monotonic
from typing import Any

from broker_client.dashboard.api import Account
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.rights import Rights

IDLE_TIMEOUT = 1800.0  # seconds without a request
LIFETIME = 12 * 3600.0  # seconds from the login
_MOST = 1000
_FAILURES = 5
_FAILURE_WINDOW = 60.0
_REMEMBERED = 10_000  # addresses

Clock = Callable[[], float]


class Session:
    """One login of one browser."""

    def __init__(self, credentials: Credentials, address: str, whoami: Any, now: float) -> None:
        """
        Args:
            credentials: of the user.
            address: from which they came.
            whoami: what the API says of the user.
            now: seconds of a steady clock.
        """
        self.account: Account = Account(credentials, address)
        self.user: str = str(whoami.get("name", credentials.user))
        self.tags: list[str] = tags_of(whoami)
        self.csrf: str = secrets.token_urlsafe(32)
        self.used: float
        self.began = self.used = now
        self.end_reason: str = ""
        """Why it is over; "" while it is not."""
        self.vhosts: frozenset[str] = frozenset()
        """That the user may see, as of `known_at`, as are the tags."""
        self.rights: Rights = Rights()
        self.known_at: float | None = None

    def __repr__(self) -> str:
        return f"<Session of {self.user!r}>"

    def has(self, *tags: str) -> bool:
        """True where the user has one of `tags`."""
        return not set(tags).isdisjoint(self.tags)

    @property
    def monitors(self) -> bool:
        """The user sees every vhost and connection."""
        return self.has("monitoring", "administrator")

    def ends_at(self) -> float:
        """When it expires unless it is used."""
        return min(self.began + LIFETIME, self.used + IDLE_TIMEOUT)

    def end(self, reason: str) -> None:
        """The session is over; its streams end."""
        self.end_reason = self.end_reason or reason

    def forget(self) -> None:
        """Have tags, vhosts and permissions asked for again."""
        self.known_at = None


def tags_of(whoami: Any) -> list[str]:
    """The tags of a user; an older RabbitMQ writes them as one text."""
    tags = whoami.get("tags", [])
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",")]
    return [str(tag) for tag in tags if tag]


class Sessions:
    """All sessions, by what the browser's cookie says."""

    def __init__(self, clock: Clock = monotonic) -> None:
        """
        Args:
            clock: seconds.
        """
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, credentials: Credentials, address: str, whoami: Any) -> tuple[str, Session]:
        """Begin a session; returns the secret of its cookie, which is new with every login."""
        self.sweep()
        while len(self._sessions) >= _MOST:
            oldest = min(self._sessions, key=lambda key: self._sessions[key].used)
            self.end(oldest, "session_expired")
        key = secrets.token_urlsafe(32)
        session = Session(credentials, address, whoami, self._clock())
        self._sessions[key] = session
        return key, session

    def find(self, key: str, *, use: bool = True) -> Session | None:
        """The session of that cookie, if it has not ended.

        Args:
            key: secret of the cookie.
            use: this is a request of the user, so the session is not idle.
        """
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.end_reason or self.seconds_left(session) <= 0:
            self.end(key, "session_expired")
            return None
        if use:
            session.used = self._clock()
        return session

    def seconds_left(self, session: Session) -> float:
        """Until the session expires unless it is used."""
        return session.ends_at() - self._clock()

    def end(self, key: str, reason: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.end(reason)

    def sweep(self) -> None:
        """End what has expired."""
        for key, session in list(self._sessions.items()):
            if session.end_reason or self.seconds_left(session) <= 0:
                self.end(key, "session_expired")

    def end_all(self, reason: str) -> None:
        for key in list(self._sessions):
            self.end(key, reason)


class LoginLimit:
    """Addresses with too many recently failed logins: RabbitMQ's API has no such limit.

    Names of users do not count: anybody could shut out an operator.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        """
        Args:
            clock: seconds.
        """
        self._clock = clock
        self._failures: dict[str, list[float]] = {}

    def is_reached(self, address: str) -> bool:
        """True while `address` has failed too often within the last minute."""
        return len(self._recent(address)) >= _FAILURES

    def failed(self, address: str) -> None:
        """Count a failure."""
        recent = [*self._recent(address), self._clock()]
        self._failures.pop(address, None)  # to the end: the oldest are forgotten first
        while len(self._failures) >= _REMEMBERED:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = recent[-_FAILURES:]

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - _FAILURE_WINDOW
        return [at for at in self._failures.get(address, ()) if at > since]
