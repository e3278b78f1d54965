"""A message over which a broker closes the whole connection does not affect other messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_client import Broker
from broker_client.amqp import table_decoding, tables
from broker_client.errors import PublishRefusedError
from tests.faults.app import QUICK, a_config, drained
from tests.faults.conftest import Place
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Headers over which brokers close the connection (RabbitMQ: 541), not refused by the
    client."""
    for module in (tables, table_decoding):
        monkeypatch.setattr(module, "isfinite", lambda number: True)
    return {"r": float("nan")}


@pytest.mark.served
@pytest.mark.timeout(60)
async def test_message_that_ends_the_connection_is_refused_and_the_others_arrive(
    place: Place, unchecked: dict[str, Any]
) -> None:
    config = a_config(place.url, place.vhost, timeout="30s")
    config["vhosts"][place.vhost]["connection"]["retry"] = QUICK
    losses: list[str] = []
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        broker.on("disconnect", lambda vhost, url: losses.append(url))
        made = []
        for number in range(30):
            name = "ab"[number % 2]
            headers = unchecked if number == 13 else {}
            message_id = f"{name}{number:05}"
            made.append(
                await broker.publish(
                    name, {"id": message_id}, message_id=message_id, headers=headers
                )
            )
        code = 541 if isinstance(place.server, RabbitMQ) else 502
        with pytest.raises(PublishRefusedError, match=f"refused by the broker: {code}"):
            await made[13]
        for publication in made[:13] + made[14:]:
            await publication
    assert len(losses) <= 3
    record = await drained(place.server.url(), place.vhost, "record")
    expected = {publication.message_id for publication in made} - {made[13].message_id}
    assert set(record) == expected


@pytest.mark.served
@pytest.mark.timeout(60)
async def test_outbox_sets_aside_what_ends_the_connection_and_goes_on(
    place: Place, unchecked: dict[str, Any], tmp_path: Path
) -> None:
    config = a_config(place.url, place.vhost)
    vhost = config["vhosts"][place.vhost]
    vhost["connection"]["retry"] = QUICK
    vhost["publish_queue"] = {"outbox": str(tmp_path / "outbox.db")}
    failures: list[Exception] = []

    def note(error: Exception, vhost: str) -> None:
        if isinstance(error, PublishRefusedError):
            failures.append(error)

    async with Broker.create(config) as broker:
        broker.on("error", note)
        poison = await broker.publish("a", {"id": "p"}, message_id="p", headers=unchecked)
        behind = await broker.publish("a", {"id": "a1"}, message_id="a1")
        await behind
        with pytest.raises(PublishRefusedError):
            await poison
        await eventually(lambda: failures)
    assert await drained(place.server.url(), place.vhost, "record") == ["a1"]
