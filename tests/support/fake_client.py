"""A Broker on fake links."""

from __future__ import annotations

from typing import Any

from broker_client.broker import Broker
from broker_client.config import VhostConfig
from broker_client.config.loader import load_config
from broker_client.connection.connectors import Connectors
from broker_client.connection.vhost import Vhost
from tests.support.links import FakeConnector, FakeLink

CONFIG: dict[str, Any] = {
    "vhosts": {
        "/": {
            "connection": {"url": "amqp://fake", "retry": {"min": "1s", "max": "4s"}},
            "queues": {"q": {}},
            "publications": {"p": {"queue": "q"}},
            "subscriptions": {
                "s": {"queue": "q", "close_timeout": "5s", "retry": {"min": "1s", "max": "4s"}}
            },
        }
    }
}


class FakeBroker(Broker):
    """Publishes to `p`, and consumes `s`, over `connector`."""

    def __init__(self) -> None:
        super().__init__(load_config(CONFIG))
        self.connector = FakeConnector(auto_confirm=True)

    @classmethod
    async def up(cls) -> FakeBroker:
        """A connected Broker whose errors are ignored."""
        broker = cls()
        broker.on("error", lambda error, vhost: None)
        await broker._open()
        return broker

    @property
    def link(self) -> FakeLink:
        return self.connector.link

    def _make_vhost(self, config: VhostConfig) -> Vhost:
        return Vhost(config, Connectors([self.connector]), self._vhost_event, self._senders)
