"""The password of an open link changes, on a real RabbitMQ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker_client import AckOrNack, Broker, Message, Subscription
from broker_client.events.health import ConnectionHealth
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.timeout(120)

FIRST, SECOND = "hunter2" * 3, "hunter3" * 3
PUBLISHING_AND_CONSUMING = 2


class Account:
    """A user of the server, and the file with its password."""

    def __init__(self, server: RabbitMQ, file: Path) -> None:
        self.server, self.file = server, file
        self.user = f"app-{uuid4().hex[:8]}"
        self.vhost = server.make_vhost()
        server.set_user(self.user, FIRST)
        server.permit(self.user, self.vhost)
        file.write_text(FIRST)

    def change_password(self) -> None:
        self.server.set_user(self.user, SECOND)
        self.write(SECOND)

    def write(self, password: str) -> None:
        """Replace the file's password atomically: it may be read at any time."""
        new = self.file.with_suffix(".new")
        new.write_text(password)
        new.replace(self.file)

    def delete(self) -> None:
        self.server.delete_vhost(self.vhost)
        self.server.delete_user(self.user)

    def updates(self) -> list[str]:
        """The server's log lines about connection.update-secret."""
        return self.server.logged(f"user '{self.user}' updated secret")

    def config(self, **connection: Any) -> dict[str, Any]:
        where = {"hostname": "127.0.0.1", "port": self.server.port, "user": self.user}
        return {
            "vhosts": {
                self.vhost: {
                    "connection": {**where, "password_file": str(self.file), **connection},
                    "queues": ["q"],
                    "publications": {"p": {"queue": "q"}},
                    "subscriptions": {"s": {"queue": "q"}},
                }
            }
        }


@pytest.fixture
async def account(rabbitmq: RabbitMQ, tmp_path: Path) -> AsyncIterator[Account]:
    account = await asyncio.to_thread(Account, rabbitmq, tmp_path / "password")
    yield account
    await asyncio.to_thread(account.delete)


class Worker:
    """A publisher and a subscription of one Broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handled: list[Any] = []
        self.lost: list[object] = []
        broker.on("error", lambda error, vhost: None)
        broker.on("disconnect", lambda *args: self.lost.append(args))

    async def subscribe(self) -> Subscription:
        return await self._broker.subscribe("s", self._handle)

    async def _handle(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        self._handled.append(content)
        await ack_or_nack()

    async def round_trip(self, content: str) -> None:
        await (await self._broker.publish("p", content))
        await eventually(lambda: content in self._handled)


def refreshing_tasks() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.endswith("refresh credentials")]


async def test_both_connections_send_the_new_secret_when_the_password_changed(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Broker.create(account.config(refresh_credentials="100ms")) as broker:
        worker = Worker(broker)
        await worker.subscribe()
        await worker.round_trip("before")
        assert account.updates() == []
        await asyncio.to_thread(account.change_password)
        await eventually(lambda: len(account.updates()) == PUBLISHING_AND_CONSUMING)
        await worker.round_trip("after")
        assert worker.lost == []
        assert caplog.text.count(": connected to ") == PUBLISHING_AND_CONSUMING
        assert len(refreshing_tasks()) == PUBLISHING_AND_CONSUMING
    assert refreshing_tasks() == []
    assert len(account.updates()) == PUBLISHING_AND_CONSUMING
    assert FIRST not in caplog.text
    assert SECOND not in caplog.text


async def test_links_stay_and_a_warning_is_logged_when_the_file_cannot_be_read(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker.create(account.config(refresh_credentials="100ms")) as broker:
        worker = Worker(broker)
        await worker.subscribe()
        await worker.round_trip("with a file")
        account.file.unlink()
        told = "credentials were not refreshed"
        await eventually(lambda: caplog.text.count(told) >= PUBLISHING_AND_CONSUMING)
        assert str(account.file) in caplog.text
        assert {each.levelname for each in caplog.records if told in each.message} == {"WARNING"}
        await worker.round_trip("without a file")
        await asyncio.to_thread(account.change_password)
        await eventually(lambda: len(account.updates()) == PUBLISHING_AND_CONSUMING)
        await worker.round_trip("after")
        assert worker.lost == []
    assert FIRST not in caplog.text
    assert SECOND not in caplog.text


async def test_refresh_ends_with_its_link_and_begins_anew_with_the_next(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = account.config(refresh_credentials="100ms", retry={"min": "50ms"})
    async with Broker.create(config) as broker:
        worker = Worker(broker)
        await worker.subscribe()
        await worker.round_trip("before")
        await asyncio.to_thread(account.server.close_connections)
        await eventually(lambda: caplog.text.count(": connected to ") == 4)
        await worker.round_trip("after")
        await eventually(lambda: len(refreshing_tasks()) == PUBLISHING_AND_CONSUMING)
        await asyncio.to_thread(account.change_password)
        await eventually(lambda: len(account.updates()) == PUBLISHING_AND_CONSUMING)


@pytest.mark.parametrize("source", ["file", "function"])
async def test_password_that_changed_is_read_again_at_the_next_connect(
    account: Account, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    config = account.config(retry={"min": "50ms", "max": "100ms"})
    if source == "function":
        connection = config["vhosts"][account.vhost]["connection"]
        del connection["user"], connection["password_file"]
        connection["credentials"] = lambda: (account.user, account.file.read_text())
    async with Broker.create(config) as broker:
        worker = Worker(broker)
        await worker.subscribe()
        await worker.round_trip("before")
        await asyncio.to_thread(account.server.ctl, "change_password", account.user, SECOND)
        await asyncio.to_thread(account.server.close_connections)
        await eventually(
            lambda: any("ACCESS_REFUSED" in each.last_error for each in broker_connections(broker)),
            timeout=20.0,
        )
        assert not broker.health().ready
        account.write(SECOND)
        await eventually(lambda: broker.health().ready)
        await worker.round_trip("after")
    assert FIRST not in caplog.text
    assert SECOND not in caplog.text


def broker_connections(broker: Broker) -> list[ConnectionHealth]:
    return [each for vhost in broker.health().vhosts.values() for each in vhost.connections]
