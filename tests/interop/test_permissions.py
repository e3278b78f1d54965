"""A user of RabbitMQ with few permissions."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote
from uuid import uuid4

import pytest

from broker_client.broker import Broker
from broker_client.errors import TopologyError
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.rabbitmq


class LimitedUser:
    """A user with configure, write and read permission for some names only."""

    def __init__(self, server: RabbitMQ) -> None:
        self.server, self.vhost = server, server.make_vhost()
        self.name = f"u-{uuid4().hex[:8]}"
        server.set_user(self.name, "secret")

    def permit(self, *, configure: str, write: str = ".*", read: str = ".*") -> None:
        self.server.permit(self.name, self.vhost, configure, write, read)

    @property
    def url(self) -> str:
        place = f"127.0.0.1:{self.server.port}/{quote(self.vhost, safe='')}"
        return f"amqp://{self.name}:secret@{place}"

    def delete(self) -> None:
        self.server.delete_vhost(self.vhost)
        self.server.delete_user(self.name)


@pytest.fixture
def user(rabbitmq: RabbitMQ) -> Iterator[LimitedUser]:
    made = LimitedUser(rabbitmq)
    yield made
    made.delete()


def a_config(url: str) -> dict[str, object]:
    connection = {"url": url, "retry": {"min": "20ms", "max": "100ms"}}
    return {"vhosts": {"/": {"connection": connection, "queues": ["q"]}}}


@pytest.mark.parametrize(
    ("permissions", "missing"),
    [
        ({"configure": "q"}, "takes configure permission for"),
        ({"configure": ".*", "write": "q|amq.default"}, "takes write and read permission for"),
        ({"configure": ".*", "read": "q"}, "read permission for it"),
    ],
)
async def test_delayed_publish_without_permission_says_which_one_is_missing(
    user: LimitedUser, permissions: dict[str, str], missing: str
) -> None:
    user.permit(**permissions)
    async with Broker.create(a_config(user.url)) as broker:
        with pytest.raises(TopologyError) as caught:
            await broker.publish("/q", "later", delay=0.1)
        text = str(caught.value)
        assert missing in text
        assert "configure, write and read permission for names that begin with" in text
        assert "'broker_client.delay.'" in text
        assert "secret" not in text
        await (await broker.publish("/q", "now"))  # everything else works


async def test_permission_that_is_taken_away_does_not_keep_the_link_down(
    user: LimitedUser,
) -> None:
    user.permit(configure=".*")
    async with Broker.create(a_config(user.url)) as broker:
        broker.on("error", lambda *args: None)
        await (await broker.publish("/q", "later", delay=60.0))
        user.permit(configure="q")
        connects = broker.stats().vhosts["/"].connects
        user.server.close_connections()
        await eventually(lambda: broker.stats().vhosts["/"].connects > connects)
        await (await broker.publish("/q", "now"))
