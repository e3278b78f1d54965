"""Which permission each method of AMQP needs, as RabbitMQ's documentation of access control has it
(https://www.rabbitmq.com/docs/access-control#authorisation).

| method | configure | write | read |
|---|---|---|---|
| exchange.declare | the exchange | its alternate exchange, if new | the exchange, if new with one |
| exchange.delete | the exchange | | |
| exchange.bind, exchange.unbind | | the destination | the source |
| queue.declare | the queue | its dead-letter exchange, if new | the queue, if new with one |
| queue.delete | the queue | | |
| queue.bind, queue.unbind | | the queue | the exchange |
| queue.purge, basic.consume, basic.get | | | the queue |
| basic.publish | | the exchange | |

A passive declaration needs none, nor does consuming from `amq.rabbitmq.reply-to`. For a topic
exchange, the routing key of a publish, and of a binding of a queue, must be permitted as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pamqp import commands
from pamqp.base import Frame

from broker_client.amqp.tables import has_none_of
from broker_client.core.access import DEFAULT_EXCHANGE, IMPERSONATOR, Permission
from broker_client.core.commands.topology import SERVER_NAMED
from broker_client.core.direct_reply import REPLY_TO
from broker_client.core.replies import access_refused, precondition_failed
from broker_client.errors import ReplyError
from broker_client.message import Outgoing
from broker_client.node.node import Node

CONFIGURE, WRITE, READ = Permission.CONFIGURE, Permission.WRITE, Permission.READ


class _Need(NamedTuple):
    permission: Permission
    kind: str
    """`exchange` or `queue`."""
    field: str
    """Of the method: where the name stands."""


_NEEDS: Mapping[type[Frame], tuple[_Need, ...]] = {
    commands.Exchange.Declare: (_Need(CONFIGURE, "exchange", "exchange"),),
    commands.Exchange.Delete: (_Need(CONFIGURE, "exchange", "exchange"),),
    commands.Exchange.Bind: (
        _Need(WRITE, "exchange", "destination"),
        _Need(READ, "exchange", "source"),
    ),
    commands.Exchange.Unbind: (
        _Need(WRITE, "exchange", "destination"),
        _Need(READ, "exchange", "source"),
    ),
    commands.Queue.Declare: (_Need(CONFIGURE, "queue", "queue"),),
    commands.Queue.Delete: (_Need(CONFIGURE, "queue", "queue"),),
    commands.Queue.Bind: (_Need(WRITE, "queue", "queue"), _Need(READ, "exchange", "exchange")),
    commands.Queue.Unbind: (_Need(WRITE, "queue", "queue"), _Need(READ, "exchange", "exchange")),
    commands.Queue.Purge: (_Need(READ, "queue", "queue"),),
    commands.Basic.Get: (_Need(READ, "queue", "queue"),),
    commands.Basic.Consume: (_Need(READ, "queue", "queue"),),
}
"""Methods that are not here need no permission; for basic.publish there is `check_publish`."""

_A_SERVER_NAME = f"{SERVER_NAMED}{'A' * 22}"
"""Stands for the name that a queue will get when the client gives none."""


class SessionPermissions:
    """The permissions of the user of one connection. Changes apply at once."""

    def __init__(self, node: Node, user: str, vhost: str, *, is_owner: bool = False) -> None:
        """
        Args:
            node: knows the permissions.
            user: name of the user who logged in.
            vhost: that the connection is open to.
            is_owner: the user may do everything.
        """
        self._node = node
        self.user: str = user
        self.vhost: str = vhost
        self._is_owner = is_owner
        self._writable: set[str] = set()
        """Exchanges that the user may publish to, as of `_version`."""
        self._version = -1

    def __repr__(self) -> str:
        return f"<SessionPermissions user={self.user!r} vhost={self.vhost!r}>"

    def check(self, method: Frame, last_queue: str = "") -> ReplyError | None:
        """Why `method` is refused, or None.

        Args:
            method: any but basic.publish.
            last_queue: what an empty name of a queue means on the channel.
        """
        needs = _NEEDS.get(type(method))
        if needs is None or getattr(method, "passive", False):
            return None
        for permission, kind, field in needs:
            name = getattr(method, field)
            if kind == "queue" and not name:
                is_new = isinstance(method, commands.Queue.Declare)
                name = _A_SERVER_NAME if is_new else last_queue
            elif name == REPLY_TO and isinstance(method, commands.Basic.Consume):
                return None
            if refusal := self._check(permission, kind, name):
                return refusal
        if isinstance(method, commands.Queue.Bind | commands.Queue.Unbind):
            return self._check_topic(READ, method.exchange, [method.routing_key])
        if isinstance(method, commands.Exchange.Declare):
            return self._check_target("exchange", method.exchange, method.arguments)
        if isinstance(method, commands.Queue.Declare):
            return self._check_target("queue", method.queue, method.arguments)
        return None

    def check_publish(self, exchange: str, routing_keys: Iterable[str]) -> ReplyError | None:
        """Why a publish is refused, or None.

        Args:
            exchange: that it goes to.
            routing_keys: its routing key, and those of the headers CC and BCC.
        """
        access = self._node.access
        if access.version != self._version:
            self._version = access.version
            self._writable.clear()
        if exchange not in self._writable:
            if refusal := self._check(WRITE, "exchange", exchange):
                return refusal
            if len(self._writable) < _MAX_WRITABLE:
                self._writable.add(exchange)
        return self._check_topic(WRITE, exchange, routing_keys)

    def limits_topics(self, exchange: str) -> bool:
        """True where routing keys of `exchange` are limited, so that each is to be checked."""
        return not self._is_owner and self._node.access.limits_topics(
            self.user, self.vhost, exchange
        )

    def check_message(self, message: Outgoing) -> ReplyError | None:
        """Why the publish of `message` is refused, or None."""
        refusal = self.check_publish(message.exchange, routing_keys(message))
        return refusal or self.check_user_id(message.properties.user_id)

    def check_user_id(self, user_id: str | None) -> ReplyError | None:
        """Why a message with this `user_id` is refused, or None.

        Only a user with the tag `impersonator` may name another one.
        """
        if user_id is None or self._is_owner or user_id == self.user or self._may_impersonate():
            return None
        return precondition_failed(
            f"user_id property set to '{user_id}' but authenticated user was '{self.user}'"
        )

    def _may_impersonate(self) -> bool:
        users = self._node.access.users
        return self.user in users and IMPERSONATOR in users.user(self.user).tags

    # ---------------------------------------------------------------- within

    def _check(self, permission: Permission, kind: str, name: str) -> ReplyError | None:
        if self._is_owner or self._node.access.may(self.user, self.vhost, permission, name):
            return None
        shown = name or DEFAULT_EXCHANGE
        return access_refused(
            f"{permission.value} access to {kind} '{shown}' in vhost '{self.vhost}' refused for "
            f"user '{self.user}'"
        )

    def _check_topic(
        self, permission: Permission, exchange: str, routing_keys: Iterable[str]
    ) -> ReplyError | None:
        access = self._node.access
        if not self.limits_topics(exchange):
            return None
        vhost = self._node.view.vhost(self.vhost)
        found = None if vhost is None else vhost.exchanges.get(exchange)
        if found is None or found.type != "topic":
            return None
        for key in routing_keys:
            if not access.may_topic(self.user, self.vhost, permission, exchange, key):
                return access_refused(
                    f"{permission.value} access to topic '{key}' in exchange '{exchange}' in vhost "
                    f"'{self.vhost}' refused for user '{self.user}'"
                )
        return None

    def _check_target(
        self, kind: str, name: str, arguments: Mapping[str, Any] | None
    ) -> ReplyError | None:
        """A new queue or exchange may not send what its owner may not read, to where it may not
        write."""
        argument = "x-dead-letter-exchange" if kind == "queue" else "alternate-exchange"
        target = (arguments or {}).get(argument)
        if not isinstance(target, str) or self._exists(kind, name):
            return None
        read = name or _A_SERVER_NAME
        return self._check(READ, kind, read) or self._check(WRITE, "exchange", target)

    def _exists(self, kind: str, name: str) -> bool:
        vhost = self._node.view.vhost(self.vhost)
        known: Mapping[str, Any] = {}
        if vhost is not None:
            known = vhost.queues if kind == "queue" else vhost.exchanges
        return name in known


_MAX_WRITABLE = 1_000
_SENDER_SELECTED = frozenset(("CC", "BCC"))
"""Headers with more routing keys."""


def routing_keys(message: Outgoing) -> list[str]:
    """The routing key of a message, and those of its headers CC and BCC."""
    keys = [message.routing_key]
    headers = message.properties.headers
    if headers is None or has_none_of(headers, _SENDER_SELECTED):
        return keys
    for name in ("CC", "BCC"):
        more = headers.get(name)
        if isinstance(more, list):
            keys.extend(key for key in more if isinstance(key, str))
    return keys
