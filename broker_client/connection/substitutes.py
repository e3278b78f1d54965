"""Substitutes of a Broker's clock and connectors, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_client.connection.connectors import Connectors
from broker_client.runtime.clock import Clock
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Connector


@slotted
class Substitutes:
    """Parts of a Broker that a test replaces; see `broker_client.testing`."""

    clock: Clock | None = None
    """Time source of the built-in broker."""
    connector: Callable[[Connector], Connector] | None = None
    """Makes the connector that is used instead of the one given, for each address."""

    def connectors(self, connectors: Connectors) -> Connectors:
        """The connectors to use instead of `connectors`."""
        if self.connector is None:
            return connectors
        return Connectors(
            self._all(connectors.main), self._all(connectors.consuming), connectors.networks
        )

    def _all(self, connectors: Sequence[Connector]) -> Sequence[Connector]:
        assert self.connector is not None
        return [self.connector(each) for each in connectors]
