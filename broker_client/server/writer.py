"""Output to one client: frames are collected, and written once per turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pamqp import commands
from pamqp.base import Frame

from broker_client.amqp.server_connection import ServerConnection
from broker_client.message import Delivery, Returned


class Writer:
    """Writes what the protocol has queued to a transport."""

    def __init__(
        self,
        protocol: ServerConnection,
        transport: asyncio.Transport,
        most_bytes: int,
        call_later: Callable[[Callable[[], None]], None],
    ) -> None:
        """
        Args:
            protocol: queues the frames.
            transport: is written to.
            most_bytes: left unread by the client, above which `is_overfull` is true.
            call_later: calls a function when what is queued should be written.
        """
        self._protocol, self._transport = protocol, transport
        self._most_bytes = most_bytes
        self._call_later = call_later
        self._is_scheduled = False
        self.has_written: bool = False
        """Something was written since this was set to False."""
        self.tells_cancel = False
        """The client wants to know when its consumers are cancelled (consumer_cancel_notify)."""

    @property
    def is_overfull(self) -> bool:
        """The client leaves too much unread."""
        return self._transport.get_write_buffer_size() > self._most_bytes

    def flush(self) -> None:
        """Write what is queued."""
        data = self._protocol.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)
            self.has_written = True

    def flush_soon(self) -> None:
        """Write what is queued by now, and by what the node is doing, once that is done."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_later(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_scheduled = False
        self.flush()

    def send(self, channel: int, method: Frame) -> None:
        """Send any method without content."""
        self._protocol.send(channel, method)
        self.flush_soon()

    def deliver(self, channel: int, delivery: Delivery) -> None:
        """Send basic.deliver."""
        self._protocol.send_deliver(channel, delivery)
        if not self._is_scheduled:  # once a message: a call less
            self.flush_soon()

    def get_ok(self, channel: int, delivery: Delivery, message_count: int) -> None:
        """Send basic.get-ok."""
        self._protocol.send_get_ok(channel, delivery, message_count)
        self.flush_soon()

    def returned(self, channel: int, returned: Returned) -> None:
        """Send basic.return."""
        self._protocol.send_return(channel, returned)
        self.flush_soon()

    def confirm(self, channel: int, delivery_tag: int, *, multiple: bool, acked: bool) -> None:
        """Send basic.ack or basic.nack for publishes."""
        self._protocol.send_confirm(channel, delivery_tag, multiple=multiple, acked=acked)
        self.flush_soon()

    def cancelled(self, channel: int, consumer_tag: str) -> None:
        """Send basic.cancel to a client that understands it."""
        if self.tells_cancel:
            self.send(channel, commands.Basic.Cancel(consumer_tag, nowait=True))

    def close_channel(
        self, channel: int, reply_code: int, reply_text: str, ids: tuple[int, int]
    ) -> None:
        """Send channel.close, for the method with these ids."""
        self._protocol.close_channel(channel, reply_code, reply_text, *ids)
        self.flush_soon()

    def close(self, reply_code: int, reply_text: str, ids: tuple[int, int] = (0, 0)) -> None:
        """Send connection.close, for the method with these ids."""
        self._protocol.close(reply_code, reply_text, *ids)
        self.flush_soon()
