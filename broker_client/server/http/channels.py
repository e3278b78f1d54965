"""A channel of the node for one request: the caller's commands, with the caller's permissions."""

from __future__ import annotations

import asyncio
from typing import Self

from pamqp.base import Frame

from broker_client.errors import ReplyError
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.node.node import Node
from broker_client.server.permissions import SessionPermissions


class RequestChannel:
    """A connection with one channel, open within a ``with`` block; also its receiver."""

    def __init__(self, node: Node, user: str, vhost: str) -> None:
        """
        Args:
            node: carries out the commands.
            user: whose permissions hold.
            vhost: in which.
        """
        self._node, self._user, self._vhost = node, user, vhost
        self.permissions: SessionPermissions = SessionPermissions(node, user, vhost)
        self._connection = 0
        self.id: int = 0
        """How the node calls the channel."""
        self._confirmed: asyncio.Future[bool] | None = None
        self._was_returned = False

    def __enter__(self) -> Self:
        self._connection = self._node.open_connection(
            self._vhost, self, create=False, user=self._user
        )
        self.id = self._node.open_channel(self._connection, self, confirm=True)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._node.close_connection(self._connection)

    def check(self, method: Frame) -> None:
        """Refuse what the caller may not do.

        Raises:
            ReplyError: 403.
        """
        if refusal := self.permissions.check(method):
            raise refusal

    async def publish(self, message: Outgoing) -> bool:
        """Publish `message`, which is mandatory; returns whether a queue took it.

        Raises:
            ReplyError: it is refused; 403 where the caller may not publish there.
        """
        if refusal := self.permissions.check_message(message):
            raise refusal
        self._node.commands.publish(self.id, [message])
        # The outcome comes with the effects, in a later turn of the event loop.
        self._confirmed = asyncio.get_running_loop().create_future()
        acked = await self._confirmed
        return acked and not self._was_returned

    # ---------------------------------------------------------------- from the node

    def deliver(self, delivery: Delivery) -> None:
        """Nothing is consumed here."""

    def confirm(self, first: int, last: int, acked: bool) -> None:
        """The message is safe, or refused by a queue."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(acked)

    def returned(self, returned: Returned) -> None:
        """No queue took the message."""
        self._was_returned = True

    def cancelled(self, consumer_tag: str) -> None:
        """Nothing is consumed here."""

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None:
        """The request ends before that."""

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the channel, or the connection."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_exception(ReplyError(reply_code, reply_text))

    def blocked(self, reason: str) -> None:
        """One message of an operator may pass."""

    def unblocked(self) -> None:
        """It was not waiting."""
