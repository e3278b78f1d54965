"""The link that the publish jobs of an executor share."""

from __future__ import annotations

from contextlib import suppress

from broker_client.errors import TransportError
from broker_client.spark.endpoints import connect_any
from broker_client.transport.base import Channel, Connector, Link


class PublishingLink:
    """One link with one confirming channel, made when needed and again when lost."""

    def __init__(self, brokers: list[Connector]) -> None:
        self._brokers = brokers
        self._link: Link | None = None
        self._channel: Channel | None = None

    def __repr__(self) -> str:
        return f"<PublishingLink {self._link!r}>"

    async def channel(self, timeout: float) -> Channel:
        """A usable channel, `timeout` seconds at most after a link was lost.

        Raises:
            TransportError: there is no link.
        """
        if self._channel is not None and self._channel.is_usable:
            return self._channel
        if self._link is None or not self._link.is_open:
            self._link = await connect_any(self._brokers, timeout=timeout)
        self._channel = await self._link.open_channel(confirm=True)
        return self._channel

    def drop(self) -> None:
        """Forget the link: what is on its way there is in doubt."""
        if self._channel is not None:
            # We ended it; publishes on the next channel must not be affected.
            self._channel.on_close = self._channel.on_confirm = self._channel.on_return = None
        if self._link is not None:
            self._link.abort()
        self._link = self._channel = None

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        self._link = self._channel = None


async def close_quietly(link: PublishingLink) -> None:
    """Close a link that is no longer needed."""
    with suppress(TransportError):
        await link.close()
