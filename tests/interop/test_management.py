"""Vhosts asserted, checked and deleted over the management API of a real RabbitMQ."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from broker_client.broker import Broker
from broker_client.config import ManagementConfig
from broker_client.connection.management import VhostManagement
from broker_client.errors import ConnectFailedError, ManagementError
from tests.support.own_server import free_port
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def vhost() -> str:
    return f"made by us/{uuid4().hex[:8]}"


def a_config(server: RabbitMQ, vhost: str, **settings: Any) -> dict[str, Any]:
    return {
        "vhosts": {
            vhost: {
                "connection": {
                    "url": f"amqp://guest:guest@127.0.0.1:{server.port}",
                    "management": {"port": server.management_port, "timeout": "5s"},
                    "retry": {"min": "50ms", "max": "200ms"},
                },
                "queues": ["q"],
                **settings,
            }
        }
    }


def api(server: RabbitMQ, **changes: Any) -> ManagementConfig:
    url = f"http://guest:guest@127.0.0.1:{server.management_port}"
    config = ManagementConfig.model_validate({"url": url, "timeout": 5.0, **changes})
    return config.completed("127.0.0.1", "guest", config.password)  # type: ignore[arg-type]


async def test_asserted_vhost_is_made_used_and_nuked(rabbitmq: RabbitMQ, vhost: str) -> None:
    broker = await Broker.create(a_config(rabbitmq, vhost, **{"assert": True, "check": True}))
    await (await broker.publish(f"{vhost}/q", "x"))
    await VhostManagement(api(rabbitmq), vhost).check()
    await broker.nuke()
    with pytest.raises(ManagementError, match="404"):
        await VhostManagement(api(rabbitmq), vhost).check()


async def test_vhost_that_is_only_checked_is_never_made(rabbitmq: RabbitMQ, vhost: str) -> None:
    with pytest.raises(ManagementError) as caught:
        await Broker.create(a_config(rabbitmq, vhost, check=True))
    assert f"failed to check vhost {vhost!r}: http://127.0.0.1:" in str(caught.value)
    assert caught.value.status == 404
    with pytest.raises(ManagementError, match="404"):
        await VhostManagement(api(rabbitmq), vhost).check()


async def test_vhost_that_is_not_asserted_outlives_a_nuke(rabbitmq: RabbitMQ, vhost: str) -> None:
    await VhostManagement(api(rabbitmq), vhost).create()
    broker = await Broker.create(a_config(rabbitmq, vhost))
    await broker.nuke()
    await VhostManagement(api(rabbitmq), vhost).check()
    await VhostManagement(api(rabbitmq), vhost).delete()


async def test_patient_start_waits_for_a_vhost_that_is_made_later(
    rabbitmq: RabbitMQ, vhost: str
) -> None:
    config = a_config(rabbitmq, vhost, check=True, startup="retry", startup_timeout="60s")
    creating = asyncio.ensure_future(Broker.create(config))
    await asyncio.sleep(0)
    await VhostManagement(api(rabbitmq), vhost).create()
    broker = await creating
    await broker.shutdown()
    await VhostManagement(api(rabbitmq), vhost).delete()


async def test_deleting_a_vhost_that_is_not_there_has_no_effect(
    rabbitmq: RabbitMQ, vhost: str
) -> None:
    await VhostManagement(api(rabbitmq), vhost).delete()
    with pytest.raises(ManagementError):
        await VhostManagement(api(rabbitmq), vhost).check()


async def test_refused_login_is_reported_without_the_password(
    rabbitmq: RabbitMQ, vhost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    config = a_config(rabbitmq, vhost, **{"assert": True})
    management = config["vhosts"][vhost]["connection"]["management"]
    management |= {"user": "guest", "password": "s3cr3t-word"}
    with pytest.raises(ManagementError) as caught:
        await Broker.create(config)
    assert caught.value.status == 401
    assert "s3cr3t-word" not in str(caught.value) + repr(caught.value) + caplog.text


async def test_api_that_is_not_there_is_an_error_in_time(rabbitmq: RabbitMQ, vhost: str) -> None:
    config = a_config(rabbitmq, vhost, **{"assert": True})
    config["vhosts"][vhost]["connection"]["management"]["port"] = free_port()
    with pytest.raises(ManagementError, match="refused"):
        await Broker.create(config)


async def test_api_of_the_next_broker_is_used_when_the_first_is_away(
    rabbitmq: RabbitMQ, vhost: str
) -> None:
    config = a_config(rabbitmq, vhost, **{"assert": True})
    good = config["vhosts"][vhost].pop("connection")
    away = {
        "url": f"amqp://127.0.0.1:{free_port()}",
        "management": {"port": free_port(), "timeout": "2s"},
    }
    config["vhosts"][vhost] |= {"connections": [away, good], "connection_strategy": "fixed"}
    broker = await Broker.create(config)
    await broker.nuke()
    with pytest.raises(ManagementError, match="404"):
        await VhostManagement(api(rabbitmq), vhost).check()


async def test_half_made_broker_is_nuked_with_what_it_had_declared(
    rabbitmq: RabbitMQ, vhost: str
) -> None:
    config = a_config(rabbitmq, vhost, **{"assert": True})
    config["vhosts"]["away"] = {
        "connection": {"url": f"amqp://127.0.0.1:{free_port()}", "connect_timeout": "2s"}
    }
    with pytest.raises(ConnectFailedError) as caught:
        await Broker.create(config)
    await VhostManagement(api(rabbitmq), vhost).check()
    with pytest.raises(ConnectFailedError):  # of the deleted vhost
        await caught.value.broker.nuke()
    with pytest.raises(ManagementError, match="404"):
        await VhostManagement(api(rabbitmq), vhost).check()
