"""The broker that is shown, and its special features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_OURS = "broker_client"
_FEATURES = ("pause", "in_flight", "deferred", "age", "latency")


@dataclass(frozen=True, slots=True)
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

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "product": self.product,
            "version": self.version,
            "features": list(_FEATURES) if self.is_ours else [],
        }
