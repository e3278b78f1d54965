"""The broker that is shown, and its special features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from broker_client.runtime.slotted import slotted

_OURS = "broker_client"
_FEATURES = ("pause", "in_flight", "deferred", "age", "latency")
_DEFAULT_QUEUE_TYPE = "default_queue_type"
"""A feature of vhosts, of ours and of RabbitMQ from 3.11 on; before, its API ignores it."""


@slotted
class BrokerInfo:
    """Which broker this is."""

    name: str
    product: str
    """`broker_client` or `RabbitMQ`."""
    version: str

    @classmethod
    def of(cls, overview: Mapping[str, Any]) -> BrokerInfo:
        """What a management API says of its broker."""
        return cls(
            str(overview.get("cluster_name", "")),
            str(overview.get("product_name", "RabbitMQ")),
            str(overview.get("product_version") or overview.get("rabbitmq_version", "")),
        )

    @property
    def is_ours(self) -> bool:
        """It has what RabbitMQ has not."""
        return self.product == _OURS

    @property
    def features(self) -> list[str]:
        """What the pages show only where the broker has it."""
        if self.is_ours:
            return [*_FEATURES, _DEFAULT_QUEUE_TYPE]
        numbers = tuple(map(int, re.findall(r"\d+", self.version)[:2]))
        return [_DEFAULT_QUEUE_TYPE] if numbers >= (3, 11) else []

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "product": self.product,
            "version": self.version,
            "features": self.features,
        }
