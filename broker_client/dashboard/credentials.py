"""A login that is kept in memory only and never shown."""

from __future__ import annotations

import httpx


class Credentials:
    """A user's name and password. Neither `repr` nor a traceback shows the password."""

    __slots__ = ("_auth", "_password", "user")

    def __init__(self, user: str, password: str) -> None:
        """
        Args:
            user: name.
            password: in clear text, as the API and AMQP want it.
        """
        self.user: str = user
        self._password = password
        self._auth = httpx.BasicAuth(user.encode(), password.encode())

    def __repr__(self) -> str:
        return f"<Credentials of {self.user!r}>"

    def __reduce__(self) -> str:
        raise TypeError("credentials are not pickled")

    @property
    def auth(self) -> httpx.Auth:
        return self._auth

    def reveal(self) -> str:
        """The password, for a connection that is opened now."""
        return self._password
