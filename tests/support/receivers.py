"""Receivers of a node's channels and connections, for tests that use a node directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_client.message import Delivery, Returned


class RecordingReceiver:
    """A receiver of a channel, or of a connection, that records what the node tells it.

    `on_delivery` may be set to answer a delivery.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.deliveries: list[Delivery] = []
        self.confirmed = 0
        """The publish sequence number confirmed last."""
        self.closed_with: list[tuple[int, str]] = []
        self.on_delivery: Callable[[Delivery], None] = lambda delivery: None

    def deliver(self, delivery: Delivery) -> None:
        self.heard.append(("deliver", delivery.body))
        self.deliveries.append(delivery)
        self.on_delivery(delivery)

    def confirm(self, first: int, last: int, acked: bool) -> None:
        self.heard.append(("confirm", first, last, acked))
        self.confirmed = last

    def returned(self, returned: Returned) -> None:
        self.heard.append(("returned", returned.reply_code))

    def cancelled(self, consumer_tag: str) -> None:
        self.heard.append(("cancelled", consumer_tag))

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None:
        self.heard.append(("timed out", consumer_tag, delivery_tag))

    def closed(self, reply_code: int, reply_text: str) -> None:
        self.heard.append(("closed", reply_code))
        self.closed_with.append((reply_code, reply_text))

    def blocked(self, reason: str) -> None:
        self.heard.append(("blocked", reason))

    def unblocked(self) -> None:
        self.heard.append(("unblocked",))

    def secret_updated(self) -> None:
        self.heard.append(("secret updated",))
