"""The outbox: accepted messages survive an unreachable broker together with a kill of the
process."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from broker_client import Broker
from broker_client.amqp.properties import decode_properties
from broker_client.errors import MessageReturnedError
from broker_client.message import Delivery
from broker_client.transport.base import Connector
from broker_client.transport.embedded.nodes import EmbeddedNodes
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.faults.conftest import Place
from tests.faults.outbox_child import a_config
from tests.support.eventually import eventually
from tests.support.managed import FaultyServer

CHILD = Path(__file__).parent / "outbox_child.py"
ROOT = Path(__file__).parents[2]


async def a_child(url: str, outbox: Path) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHILD),
        url,
        str(outbox),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert await said(child) == "up"
    return child


async def drained(connector: Connector, queue: str) -> list[Delivery]:
    """Take all that is in `queue`."""
    link = await connector.connect(timeout=30.0)
    try:
        channel = await link.open_channel()
        taken = []
        while (delivery := await channel.get(queue, no_ack=True)) is not None:
            taken.append(delivery)
        return taken
    finally:
        await link.close()


def id_of(delivery: Delivery) -> str | None:
    return delivery.properties.message_id


async def said(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    async with asyncio.timeout(30.0):
        return (await child.stdout.readline()).decode().strip()


@pytest.mark.timeout(180)
async def test_accepted_while_the_broker_is_down_and_killed_in_between_all_arrive_in_order(
    restartable: FaultyServer, chance: random.Random, tmp_path: Path
) -> None:
    server, outbox = restartable, tmp_path / "outbox.db"
    url = server.url()
    child = await a_child(url, outbox)
    try:
        await asyncio.to_thread(server.kill)
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        accepted = [await said(child) for _ in range(chance.randrange(50, 1_000))]
        child.kill()
        assert child.stdout is not None
        accepted += (await child.stdout.read()).decode().split()
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert "done" not in accepted, "the moment to kill it was missed"
    await asyncio.to_thread(server.start)

    async with Broker.create(a_config(url, str(outbox))) as broker:
        stats = broker.stats
        await eventually(
            lambda: stats().vhosts["/"].publish_queue.succeeded >= len(accepted), timeout=30.0
        )
        await eventually(lambda: stats().vhosts["/"].publish_queue.unconfirmed == 0)
    arrived = [id_of(each) for each in await drained(NetworkConnector(url, vhost="/"), "record")]
    first = list(dict.fromkeys(arrived))
    assert first[: len(accepted)] == accepted
    # One more may have been on disk when the child died before it could say so.
    assert len(first) <= len(accepted) + 1


async def test_publish_returns_while_the_link_is_down_and_its_outcome_comes_when_it_is_back(
    place: Place, tmp_path: Path
) -> None:
    config = a_config(place.url, str(tmp_path / "outbox.db"))
    config["vhosts"]["/"]["connection"]["vhost"] = place.vhost
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        place.proxy.refuse()
        place.proxy.cut()
        publications = [
            await broker.publish("orders", n, message_id=f"m{n}", timeout=0.01) for n in range(50)
        ]
        assert not any(publication.is_ended for publication in publications)
        place.proxy.accept()
        outcomes = [await publication for publication in publications]
    assert [outcome.message_id for outcome in outcomes] == [f"m{n}" for n in range(50)]
    arrived = await drained(NetworkConnector(place.server.url(), vhost=place.vhost), "record")
    assert [id_of(each) for each in arrived] == [f"m{n}" for n in range(50)]


async def test_refused_by_the_broker_is_kept_apart_for_a_person_to_look_at(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "outbox.db"
    config = a_config(place.url, str(path))
    vhost = config["vhosts"]["/"]
    vhost["connection"]["vhost"] = place.vhost
    vhost["exchanges"] = ["nowhere"]
    vhost["publications"]["nowhere"] = {"exchange": "nowhere"}
    errors: list[BaseException] = []
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: errors.append(error))
        headers = {"CC": ["outbox.failed"], "trace": "t1"}
        publication = await broker.publish("nowhere", "x", "lost", message_id="m1", headers=headers)
        with pytest.raises(MessageReturnedError):
            await publication
        await (await broker.publish("orders", "y", message_id="m2"))
        assert [type(error) for error in errors] == [MessageReturnedError]
    nodes = EmbeddedNodes()
    file = nodes.connector(f"embedded://{path}", "/")
    [message] = await drained(file, "outbox.failed")
    envelope = (message.properties.headers or {})["broker_client.outbox"]
    properties = decode_properties(envelope["properties"])
    assert properties.message_id == "m1"
    assert properties.headers == headers
    assert await drained(file, "outbox") == []
    await nodes.close()
