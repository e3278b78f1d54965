"""The users of a running node: `core.access.Users` with random salts, kept by its store."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable

from broker_client.core.access import (
    ADMINISTRATOR,
    DEFAULT_USER,
    SALT_BYTES,
    Permission,
    User,
    Users,
    hash_password,
)

log: logging.Logger = logging.getLogger("broker_client.node")


class AccessControl:
    """Asks for and changes users and permissions of a node.

    Each change is kept with the next commit of the node's store; `Node.drain` waits for it.
    """

    def __init__(self, users: Users, wake: Callable[[], None]) -> None:
        """
        Args:
            users: of the node's engine.
            wake: schedules what a change has the store write.
        """
        self.users = users
        """All of them; changes go through this object."""
        self._wake = wake
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"<AccessControl users={len(self.users)}>"

    # ---------------------------------------------------------------- questions

    @property
    def version(self) -> int:
        """Grows with every change: a verdict counts as long as it stays the same."""
        return self.users.version

    def authenticate(self, user: str, password: str) -> User | None:
        """The user, where the password is right."""
        return self.users.authenticate(user, password)

    def is_loopback_only(self, user: str) -> bool:
        """True where the user may log in from this machine only, as RabbitMQ's guest."""
        return user == DEFAULT_USER

    def may_use_vhost(self, user: str, vhost: str) -> bool:
        """True where the user has permissions in the vhost."""
        return self.users.may_use_vhost(user, vhost)

    def may(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        """True where the user has `permission` for the exchange or queue `name`."""
        return self.users.may(user, vhost, permission, name) or self._refused()

    def limits_topics(self, user: str, vhost: str, exchange: str) -> bool:
        """True where topic permissions limit the routing keys of `exchange` for the user."""
        return self.users.limits_topics(user, vhost, exchange)

    def may_topic(
        self, user: str, vhost: str, permission: Permission, exchange: str, routing_key: str
    ) -> bool:
        """True unless topic permissions forbid the routing key."""
        may = self.users.may_topic(user, vhost, permission, exchange, routing_key)
        return may or self._refused()

    def _refused(self) -> bool:
        """Log once each pattern that refuses everything, since it takes too long."""
        for problem in self.users.problems():
            if problem not in self._told:
                self._told.add(problem)
                log.warning("%s", problem)
        return False

    # ---------------------------------------------------------------- changes

    def add_default_user(self, vhost: str = "/") -> bool:
        """Add RabbitMQ's default user, guest, to a node without users.

        Args:
            vhost: in which it gets all permissions; it must exist.

        Returns:
            False where there are users already.
        """
        if len(self.users):
            return False
        self.add_user(DEFAULT_USER, DEFAULT_USER, tags=(ADMINISTRATOR,))
        self.users.set_permissions(DEFAULT_USER, vhost, configure=".*", write=".*", read=".*")
        return True

    def add_user(self, name: str, password: str | None, *, tags: Iterable[str] = ()) -> User:
        """Add a user, or replace its password and tags.

        Args:
            name: of the user.
            password: None for a user who cannot log in with one.
            tags: see `core.access.TAGS`.

        Raises:
            AccessControlError: the name cannot be used.
        """
        self._wake()
        return self.users.add_user(name, password_hash=_hashed(password), tags=tags)

    def set_password(self, name: str, password: str | None) -> User:
        """Replace the password of a user.

        Raises:
            UnknownNameError: there is no such user.
        """
        self._wake()
        return self.users.set_password_hash(name, _hashed(password))

    def import_user(
        self, name: str, password_hash: str, hashing_algorithm: str, tags: Iterable[str]
    ) -> User:
        """Add a user as RabbitMQ's definitions have it, or replace it.

        Raises:
            AccessControlError: the name, the hash or the algorithm cannot be used.
        """
        self._wake()
        return self.users.add_user(
            name, password_hash=password_hash, hashing_algorithm=hashing_algorithm, tags=tags
        )

    def set_tags(self, name: str, tags: Iterable[str]) -> User:
        """Replace the tags of a user.

        Raises:
            UnknownNameError: there is no such user.
        """
        self._wake()
        return self.users.set_tags(name, tags)

    def remove_user(self, name: str) -> None:
        """Remove a user and its permissions.

        Raises:
            UnknownNameError: there is no such user.
            AccessControlError: it is the last one.
        """
        self._wake()
        self.users.remove_user(name)

    def set_permissions(
        self, user: str, vhost: str, *, configure: str, write: str, read: str
    ) -> None:
        """Let a user use a vhost; see `Users.set_permissions`."""
        self._wake()
        self.users.set_permissions(user, vhost, configure=configure, write=write, read=read)

    def clear_permissions(self, user: str, vhost: str) -> bool:
        """Delete the permissions of a user in a vhost; returns False if it had none."""
        self._wake()
        return self.users.clear_permissions(user, vhost)

    def set_topic_permissions(
        self, user: str, vhost: str, exchange: str, *, write: str, read: str
    ) -> None:
        """Limit the routing keys of a topic exchange; see `Users.set_topic_permissions`."""
        self._wake()
        self.users.set_topic_permissions(user, vhost, exchange, write=write, read=read)

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Free the routing keys of an exchange, or of all; returns False where none was limited."""
        self._wake()
        return self.users.clear_topic_permissions(user, vhost, exchange)


def _hashed(password: str | None) -> str:
    # RabbitMQ: nobody logs in with an empty password.
    return hash_password(password, secrets.token_bytes(SALT_BYTES)) if password else ""
