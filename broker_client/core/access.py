"""Users of a node, and what they may do: passwords, tags, permissions of vhosts and of topics.

As in RabbitMQ (https://www.rabbitmq.com/docs/access-control): a user may use a vhost in which it
has permissions; these are three patterns, for names that it may configure, write to and read from.
Topic permissions limit routing keys besides. A change counts from the next command on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum

from broker_client.core.access_pattern import AccessPattern
from broker_client.core.names import MAX_NAME_BYTES, name_problem
from broker_client.core.records import (
    AccessRecord,
    PermissionsRemoved,
    PermissionsSet,
    TopicPermissionsRemoved,
    TopicPermissionsSet,
    UserRemoved,
    UserSet,
)
from broker_client.errors import AccessControlError, UnknownNameError
from broker_client.runtime.slotted import slotted

DEFAULT_USER = "guest"
"""Of a new server, with the same password; may log in from the same machine only."""
DEFAULT_EXCHANGE = "amq.default"
"""By what name permissions know the default exchange."""
ADMINISTRATOR = "administrator"
IMPERSONATOR = "impersonator"
TAGS = (ADMINISTRATOR, "monitoring", "policymaker", "management", IMPERSONATOR)
"""Those that have a meaning; others are kept."""
SHA256 = "rabbit_password_hashing_sha256"
_ALGORITHMS: Mapping[str, str] = {SHA256: "sha256", "rabbit_password_hashing_sha512": "sha512"}
SALT_BYTES = 4


class Permission(Enum):
    """What a permission is for."""

    CONFIGURE = "configure"
    """Declare and delete."""
    WRITE = "write"
    """Publish, and bind to."""
    READ = "read"
    """Consume, purge, and bind from."""


@slotted
class User:
    """One user."""

    name: str
    tags: tuple[str, ...] = ()
    password_hash: str = field(default="", repr=False)
    """Base64 of salt and digest, as in RabbitMQ's definitions; empty where no password is right."""
    hashing_algorithm: str = SHA256


@slotted
class VHostPermissions:
    """What a user may do in a vhost: patterns of the names of exchanges and queues."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@slotted
class TopicPermissions:
    """Patterns of the routing keys that a user may publish with, and bind with."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


_Patterns = Mapping[Permission, AccessPattern]


def hash_password(password: str, salt: bytes, algorithm: str = SHA256) -> str:
    """The form in which RabbitMQ keeps a password: base64 of the salt and of the digest of salt
    and password.

    Args:
        password: as the user gives it.
        salt: `SALT_BYTES` random bytes.
        algorithm: as in RabbitMQ's definitions.
    """
    digest = hashlib.new(_ALGORITHMS[algorithm], salt + password.encode("utf-8", "replace"))
    return base64.b64encode(salt + digest.digest()).decode("ascii")


class Users:
    """All users and permissions of a node. Pure: `note` gets a record of each change."""

    def __init__(self, note: Callable[[AccessRecord], None]) -> None:
        """
        Args:
            note: takes the records, in order.
        """
        self._note = note
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], _Patterns] = {}
        """By vhost and user."""
        self._topics: dict[tuple[str, str, str], _Patterns] = {}
        """By vhost, user and exchange."""
        self.version: int = 0
        """Grows with every change: a verdict counts as long as it stays the same."""

    def __repr__(self) -> str:
        return f"<Users {len(self._users)}>"

    def restore(self, records: Iterable[AccessRecord]) -> None:
        """Restore users, then their permissions, from a store."""
        for record in records:
            self._apply(record)

    def _apply(self, record: AccessRecord) -> None:
        self.version += 1
        match record:
            case UserSet(name, password_hash, algorithm, tags):
                self._users[name] = User(name, tags, password_hash, algorithm)
            case UserRemoved(name):
                self._users.pop(name, None)
                self._permissions = {k: v for k, v in self._permissions.items() if k[1] != name}
                self._topics = {k: v for k, v in self._topics.items() if k[1] != name}
            case PermissionsSet(vhost, user, configure, write, read):
                self._permissions[vhost, user] = _patterns(configure, write, read)
            case PermissionsRemoved(vhost, user):
                self._permissions.pop((vhost, user), None)
            case TopicPermissionsSet(vhost, user, exchange, write, read):
                self._topics[vhost, user, exchange] = _topic_patterns(user, vhost, write, read)
            case TopicPermissionsRemoved(vhost, user, exchange):
                self._topics.pop((vhost, user, exchange), None)

    def _change(self, record: AccessRecord) -> None:
        self._apply(record)
        self._note(record)

    # ---------------------------------------------------------------- questions

    def __iter__(self) -> Iterator[User]:
        """All users, by name."""
        return iter([self._users[name] for name in sorted(self._users)])

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def __len__(self) -> int:
        return len(self._users)

    def user(self, name: str) -> User:
        """The user of that name.

        Raises:
            UnknownNameError: there is none.
        """
        try:
            return self._users[name]
        except KeyError:
            raise UnknownNameError("user", name, sorted(self._users)) from None

    def permissions(self) -> list[VHostPermissions]:
        """All permissions, by vhost and user."""
        return [
            VHostPermissions(user, vhost, *(patterns[each].text for each in Permission))
            for (vhost, user), patterns in sorted(self._permissions.items(), key=_by_names)
        ]

    def topic_permissions(self) -> list[TopicPermissions]:
        """All topic permissions, by vhost, user and exchange."""
        return [
            TopicPermissions(
                user,
                vhost,
                exchange,
                patterns[Permission.WRITE].text,
                patterns[Permission.READ].text,
            )
            for (vhost, user, exchange), patterns in sorted(self._topics.items(), key=_by_names)
        ]

    def authenticate(self, name: str, password: str) -> User | None:
        """The user, where the password is right."""
        user = self._users.get(name)
        kept = b"" if user is None else _decoded(user.password_hash)
        algorithm = SHA256 if user is None else user.hashing_algorithm
        # Also without such a user, so that the time does not tell which names exist.
        given = _decoded(hash_password(password, kept[:SALT_BYTES], algorithm))
        return user if kept and hmac.compare_digest(kept, given) else None

    def may_use_vhost(self, user: str, vhost: str) -> bool:
        """True where the user has permissions in the vhost, if only empty ones."""
        return (vhost, user) in self._permissions

    def may(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        """True where the user has `permission` for the exchange or queue `name`.

        Args:
            user: name of the user.
            vhost: in which.
            permission: what for.
            name: of the exchange or queue; `DEFAULT_EXCHANGE` or "" for the default exchange.
        """
        patterns = self._permissions.get((vhost, user))
        return patterns is not None and patterns[permission].matches(name or DEFAULT_EXCHANGE)

    def limits_topics(self, user: str, vhost: str, exchange: str) -> bool:
        """True where topic permissions limit the routing keys of `exchange` for the user."""
        return (vhost, user, exchange or DEFAULT_EXCHANGE) in self._topics

    def may_topic(
        self, user: str, vhost: str, permission: Permission, exchange: str, routing_key: str
    ) -> bool:
        """True unless topic permissions forbid the routing key.

        Args:
            user: name of the user.
            vhost: in which.
            permission: `WRITE` for a publish, `READ` for a binding.
            exchange: name of the topic exchange.
            routing_key: of the message, or of the binding.
        """
        patterns = self._topics.get((vhost, user, exchange or DEFAULT_EXCHANGE))
        if patterns is None:
            return True
        return patterns[permission].matches(routing_key)

    def problems(self) -> list[str]:
        """Patterns that match nothing since they take too long or are unusable, and why."""
        return [
            f"permissions of user {key[1]!r} in vhost {key[0]!r}: {pattern.problem}"
            for table in (self._permissions, self._topics)
            for key, patterns in table.items()
            for pattern in patterns.values()
            if pattern.problem is not None
        ]

    # ---------------------------------------------------------------- changes

    def add_user(
        self,
        name: str,
        *,
        password_hash: str = "",
        hashing_algorithm: str = SHA256,
        tags: Iterable[str] = (),
    ) -> User:
        """Add a user, or replace its password and tags.

        Args:
            name: of the user.
            password_hash: from `hash_password`, or from RabbitMQ's definitions.
            hashing_algorithm: as there.
            tags: see `TAGS`.

        Raises:
            AccessControlError: the name, the hash or the algorithm cannot be used.
        """
        self.check_user(name, password_hash, hashing_algorithm)
        kept = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
        self._change(UserSet(name, password_hash, hashing_algorithm, kept))
        return self._users[name]

    @staticmethod
    def check_user(name: str, password_hash: str, hashing_algorithm: str) -> None:
        """Raise what `add_user` would."""
        if not name or name_problem(name):
            raise AccessControlError(
                "the name of a user", f"is a text of 1 to {MAX_NAME_BYTES} bytes"
            )
        if hashing_algorithm not in _ALGORITHMS:
            allowed = ", ".join(_ALGORITHMS)
            raise AccessControlError(
                f"user {name!r}:",
                f"hashing algorithm {hashing_algorithm!r} is not one of {allowed}",
            )
        if password_hash:
            digest_bytes = hashlib.new(_ALGORITHMS[hashing_algorithm]).digest_size
            if len(_decoded(password_hash)) != SALT_BYTES + digest_bytes:
                why = f"the password hash is not base64 of a salt and a {hashing_algorithm} digest"
                raise AccessControlError(f"user {name!r}:", why)

    def set_tags(self, name: str, tags: Iterable[str]) -> User:
        """Replace the tags of a user.

        Raises:
            UnknownNameError: there is no such user.
        """
        user = self.user(name)
        return self.add_user(
            name,
            password_hash=user.password_hash,
            hashing_algorithm=user.hashing_algorithm,
            tags=tags,
        )

    def set_password_hash(self, name: str, password_hash: str, algorithm: str = SHA256) -> User:
        """Replace the password of a user; an empty hash means that it cannot log in.

        Raises:
            UnknownNameError: there is no such user.
            AccessControlError: the hash or the algorithm cannot be used.
        """
        tags = self.user(name).tags
        return self.add_user(
            name, password_hash=password_hash, hashing_algorithm=algorithm, tags=tags
        )

    def remove_user(self, name: str) -> None:
        """Remove a user and its permissions.

        Raises:
            UnknownNameError: there is no such user.
            AccessControlError: it is the last one; nobody could log in any more.
        """
        self.user(name)
        if len(self._users) == 1:
            raise AccessControlError(f"user {name!r}", "is the last one: add another one first")
        self._change(UserRemoved(name))

    def set_permissions(
        self, user: str, vhost: str, *, configure: str, write: str, read: str
    ) -> None:
        """Let a user use a vhost.

        Args:
            user: name of the user.
            vhost: name of the vhost; the caller checks that it exists.
            configure: pattern of the names that it may declare and delete.
            write: pattern of the names that it may publish to, and bind to.
            read: pattern of the names that it may consume from, and bind from.

        Raises:
            UnknownNameError: there is no such user.
            AccessControlError: a pattern is invalid.
            UnsupportedError: the package `regex` is not installed.
        """
        self.user(user)
        for text in (configure, write, read):
            AccessPattern(text).check()
        self._change(PermissionsSet(vhost, user, configure, write, read))

    def clear_permissions(self, user: str, vhost: str) -> bool:
        """Delete the permissions of a user in a vhost; returns False if it had none."""
        if (vhost, user) not in self._permissions:
            return False
        self._change(PermissionsRemoved(vhost, user))
        return True

    def set_topic_permissions(
        self, user: str, vhost: str, exchange: str, *, write: str, read: str
    ) -> None:
        """Limit the routing keys of a topic exchange.

        Args:
            user: name of the user.
            vhost: name of the vhost; the caller checks that it exists.
            exchange: name of the exchange, which need not exist.
            write: pattern of the routing keys that it may publish with; ``{username}`` and
                ``{vhost}`` stand for the names.
            read: the same for the keys that it may bind with.

        Raises:
            As `set_permissions`.
        """
        self.user(user)
        for text in (write, read):
            AccessPattern(text).check()
        name = exchange or DEFAULT_EXCHANGE
        if problem := name_problem(name):
            raise AccessControlError("the name of an exchange", problem)
        self._change(TopicPermissionsSet(vhost, user, name, write, read))

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Free the routing keys of an exchange, or of all; returns False where none was limited."""
        wanted = exchange or DEFAULT_EXCHANGE
        keys = [
            key
            for key in self._topics
            if key[:2] == (vhost, user) and (exchange is None or key[2] == wanted)
        ]
        for key in keys:
            self._change(TopicPermissionsRemoved(*key))
        return bool(keys)

    def forget_vhost(self, vhost: str) -> None:
        """Drop all permissions in a vhost that is gone."""
        for key in [key for key in self._topics if key[0] == vhost]:
            self._change(TopicPermissionsRemoved(*key))
        for permissions in [key for key in self._permissions if key[0] == vhost]:
            self._change(PermissionsRemoved(*permissions))


def _patterns(configure: str, write: str, read: str) -> _Patterns:
    return {
        Permission.CONFIGURE: AccessPattern(configure),
        Permission.WRITE: AccessPattern(write),
        Permission.READ: AccessPattern(read),
    }


def _topic_patterns(user: str, vhost: str, write: str, read: str) -> _Patterns:
    names = {"username": user, "vhost": vhost}
    return {
        Permission.WRITE: AccessPattern(write, names),
        Permission.READ: AccessPattern(read, names),
    }


def _by_names(item: tuple[tuple[str, ...], object]) -> tuple[str, ...]:
    return item[0]


def _decoded(password_hash: str) -> bytes:
    try:
        return base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        return b""
