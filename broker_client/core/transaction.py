"""Publishes and settlements of a transaction until tx.commit (AMQP 0-9-1 §1.9)."""

from __future__ import annotations

from typing import NamedTuple

from broker_client.message import Outgoing


class Settlement(NamedTuple):
    """An ack, or a nack with or without requeue, of deliveries that stay in flight for now."""

    tags: tuple[int, ...]
    acked: bool
    requeue: bool
    delay: float | None = None


class Transaction:
    """Publishes and settlements since tx.select, or since the last commit or rollback."""

    __slots__ = ("publishes", "settlements", "tags")

    def __init__(self) -> None:
        self.publishes: list[Outgoing] = []
        self.settlements: list[Settlement] = []
        self.tags: set[int] = set()
        """Every tag of `settlements`; settling one again is an error, as outside a transaction."""

    def settle(self, settlement: Settlement) -> None:
        """Hold back a settlement."""
        self.settlements.append(settlement)
        self.tags.update(settlement.tags)
