"""The handshake: what we send to a broker, and how we treat its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pamqp import commands
from pamqp.base import Frame

from broker_client.broker import Broker
from broker_client.errors import (
    ChannelsExhaustedError,
    ConnectFailedError,
    OperationTimeoutError,
    PublishTimeoutError,
    TopologyError,
    UnsupportedError,
)
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.eventually import eventually
from tests.support.fake_broker import FakeBroker
from tests.support.own_server import free_port
from tests.support.rabbitmq import RabbitMQ

SPECIAL = "p@s:s/w#%$é"
ENCODED = "p%40s%3As%2Fw%23%25%24%C3%A9"
QUICK = {"min": "20ms", "max": "100ms"}


def a_config(*connections: dict[str, Any] | str, **vhost: Any) -> dict[str, Any]:
    return {"vhosts": {"/": {"connections": list(connections), **vhost}}}


# --------------------------------------------------------------------------- login


@pytest.mark.parametrize("vhost", ["/", "a/b", "größe", "50%", "a b"])
@pytest.mark.parametrize("form", ["url", "parts"])
async def test_special_characters_reach_the_broker_as_they_are(
    form: str, vhost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with FakeBroker() as fake:
        connection: dict[str, Any] = {
            "hostname": "127.0.0.1",
            "port": fake.port,
            "user": SPECIAL,
            "password": SPECIAL,
            "vhost": vhost,
        }
        if form == "url":
            url = f"amqp://{ENCODED}:{ENCODED}@127.0.0.1:{fake.port}"
            connection = {"url": url, "vhost": vhost}
        async with Broker.create(a_config(connection)) as broker:
            login = fake.heard(commands.Connection.StartOk).response
            assert login == f"\0{SPECIAL}\0{SPECIAL}"
            assert fake.heard(commands.Connection.Open).virtual_host == vhost
            shown = repr(broker.connections()) + repr(broker.health()) + repr(broker.stats())
        assert SPECIAL not in shown
        ours = [each for each in caplog.records if each.name.startswith("broker_client")]
        assert not any(f":{ENCODED}@" in each.getMessage() for each in ours)
        assert not any(SPECIAL in each.getMessage() for each in ours)


@pytest.mark.parametrize("vhost", ["", "a%2Fb"])
async def test_vhost_that_aio_pika_cannot_ask_for_is_refused(vhost: str) -> None:
    with pytest.raises(UnsupportedError, match="the vhost"):
        NetworkConnector("amqp://guest:guest@127.0.0.1:1", vhost=vhost)


# --------------------------------------------------------------------------- properties, limits


async def test_name_and_properties_are_told_to_the_broker() -> None:
    async with FakeBroker() as fake:
        connection = {
            "url": f"amqp://127.0.0.1:{fake.port}",
            "name": "billing",
            "client_properties": {"team": "red", "capabilities": {"extra": True}},
        }
        async with Broker.create(a_config(connection, queues=["q"])) as broker:
            told = fake.heard(commands.Connection.StartOk).client_properties
            assert (told["connection_name"], told["team"]) == ("billing", "red")
            assert told["product"] == "broker_client"
            assert told["capabilities"]["connection.blocked"] is True
            assert told["capabilities"]["extra"] is True
            await broker._vhosts["/"].wait_up()
            told = fake.heard(commands.Connection.StartOk).client_properties
            assert told["connection_name"] == "billing (consuming)"


async def test_property_that_cannot_be_sent_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(UnsupportedError, match="client property"):
        NetworkConnector("amqp://127.0.0.1:1", client_properties={"odd": object()})


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ((None, None), (2047, 131_072), (2047, 131_072)),
        ((10, 8_192), (2047, 131_072), (10, 8_192)),
        ((10, 8_192), (5, 4_096), (5, 4_096)),
        ((10, 8_192), (0, 0), (10, 8_192)),
        ((0, 0), (2047, 131_072), (2047, 131_072)),
    ],
)
async def test_smaller_limit_is_agreed_on(
    ours: tuple[int | None, int | None], theirs: tuple[int, int], agreed: tuple[int, int]
) -> None:
    async with FakeBroker(tune=(*theirs, 60)) as fake:
        connector = NetworkConnector(
            f"amqp://guest:guest@127.0.0.1:{fake.port}",
            channel_max=ours[0],
            frame_max=ours[1],
            heartbeat=7,
        )
        link = await connector.connect(timeout=30.0)
        answer = fake.heard(commands.Connection.TuneOk)
        assert (answer.channel_max, answer.frame_max, answer.heartbeat) == (*agreed, 7)
        assert link.frame_max == agreed[1]
        await link.close()


async def test_channel_beyond_the_limit_is_refused_and_numbers_are_used_again() -> None:
    async with FakeBroker() as fake:
        url = f"amqp://guest:guest@127.0.0.1:{fake.port}"
        link = await NetworkConnector(url, channel_max=3).connect(timeout=30.0)
        channels = [await link.open_channel() for _ in range(3)]
        with pytest.raises(ChannelsExhaustedError, match="all 3 channels"):
            await link.open_channel()
        for _ in range(50):
            await channels.pop(0).close()
            channels.append(await link.open_channel())
        assert sorted(channel.number for channel in channels) == [1, 2, 3]
        await link.close()


# --------------------------------------------------------------------------- rotation


def home_node_down(method: Frame) -> list[Frame] | None:
    if isinstance(method, commands.Queue.Declare):
        return [commands.Channel.Close(404, "NOT_FOUND - home node 'b' is down", 50, 10)]
    return None


async def test_good_node_is_reached_in_one_round_past_a_dead_and_a_broken_one() -> None:
    async with FakeBroker(script=home_node_down) as broken, FakeBroker() as good:
        urls = [f"amqp://127.0.0.1:{port}" for port in (free_port(), broken.port, good.port)]
        config = a_config(*urls, connection_strategy="fixed", queues=["q"])
        async with Broker.create(config) as broker:
            assert broker.connections()[0][1].endswith(f":{good.port}/%2F")
            assert broken.connections == 1


async def test_round_goes_on_after_the_good_node_is_gone_and_returns_to_the_first() -> None:
    first, port = FakeBroker(), free_port()
    first.port = port
    connections = [{"url": f"amqp://127.0.0.1:{port}", "retry": QUICK}]
    async with FakeBroker() as other:
        connections.append({"url": f"amqp://127.0.0.1:{other.port}", "retry": QUICK})
        config = a_config(*connections, connection_strategy="fixed", queues=["q"])
        async with Broker.create(config) as broker:
            broker.on("error", lambda error, vhost: None)
            assert broker.connections()[0][1].endswith(f":{other.port}/%2F")
            async with first:
                await broker.bounce(timeout=30.0)
                assert broker.connections()[0][1].endswith(f":{port}/%2F")
            await broker._vhosts["/"].connection.wait_up()


async def test_failure_of_every_node_raises_the_last_in_words() -> None:
    async with FakeBroker(script=home_node_down) as broken:
        dead = f"amqp://127.0.0.1:{free_port()}"
        for order, kind in ((("broken", "dead"), ConnectFailedError), (("dead",), None)):
            urls = [dead if each == "dead" else f"amqp://127.0.0.1:{broken.port}" for each in order]
            config = a_config(*urls, connection_strategy="fixed", queues=["q"])
            with pytest.raises(kind or ConnectFailedError, match="failed to connect to amqp://"):
                await Broker.create(config)
        config = a_config(dead, f"amqp://127.0.0.1:{broken.port}", queues=["q"])
        config["vhosts"]["/"]["connection_strategy"] = "fixed"
        with pytest.raises(TopologyError, match="home node 'b' is down"):
            await Broker.create(config)


# --------------------------------------------------------------------------- silence of aiormq


async def test_link_that_is_lost_or_aborted_is_reported_by_us_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker() as fake:
        url = f"amqp://127.0.0.1:{fake.port}"
        config = a_config({"url": url, "retry": QUICK}, queues=["q"])
        async with Broker.create(config) as broker:
            broker.on("error", lambda error, vhost: None)
            for _ in range(3):
                await broker.bounce()
    foreign = [each for each in caplog.records if not each.name.startswith("broker_client")]
    assert [each.getMessage() for each in foreign] == []
    assert not any(each.exc_info for each in caplog.records)


async def test_address_where_nothing_listens_is_reported_by_us_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConnectFailedError):
        await Broker.create(a_config(f"amqp://127.0.0.1:{free_port()}"))
    assert [each for each in caplog.records if not each.name.startswith("broker_client")] == []


@pytest.mark.parametrize("properties", [{}, {"product": "x"}, {"capabilities": "none"}])
async def test_broker_without_capabilities_is_refused_by_an_error_that_says_so(
    properties: dict[str, Any],
) -> None:
    async with FakeBroker(properties=properties) as fake:
        connector = NetworkConnector(f"amqp://guest:guest@127.0.0.1:{fake.port}")
        with pytest.raises(ConnectFailedError, match="names no capabilities"):
            await connector.connect(timeout=30.0)


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (commands.Queue.Declare, "queue 'q' of vhost '/' at amqp://guest"),
        (commands.Channel.Open, "opening a channel at amqp://guest"),
    ],
)
async def test_declaration_that_is_never_answered_names_what_where_and_which_setting(
    silent: type[Frame], said: str
) -> None:
    async with FakeBroker(script=lambda method: [] if isinstance(method, silent) else None) as fake:
        url = f"amqp://guest:guest@127.0.0.1:{fake.port}"
        began = asyncio.get_running_loop().time()
        with pytest.raises(OperationTimeoutError) as caught:
            await Broker.create(a_config({"url": url, "connect_timeout": "300ms"}, queues=["q"]))
        assert asyncio.get_running_loop().time() - began < 20.0
    assert said in str(caught.value).replace(":***@", "")
    assert f"127.0.0.1:{fake.port}" in str(caught.value)
    assert str(caught.value).endswith("(connect_timeout): no answer within 0.3 s")


@pytest.mark.rabbitmq
async def test_publish_and_subscription_without_a_channel_left_say_what_to_raise(
    rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a", "b", "c", "d"]
    connection = {"url": rabbitmq.url(rabbitmq.make_vhost()), "channel_max": 3, "retry": QUICK}
    config = a_config(
        connection,
        separate_connections=False,
        queues=names,
        publications={"p": {"queue": "a", "timeout": "1s"}},
        subscriptions={name: {"queue": name} for name in names},
    )
    said = "all 3 channels .* 3 of them for subscriptions: raise channel_max"
    async with Broker.create(config) as broker:
        held = [await broker.subscribe(name, lambda *_: None) for name in names[:3]]
        await eventually(lambda: all(each.is_subscribed for each in held))
        with pytest.raises(PublishTimeoutError, match=said):
            await (await broker.publish("p", "x"))
        assert not broker.health().ready
        assert caplog.text.count("publishing has to wait") == 1
        errors: list[BaseException] = []
        last = await broker.subscribe(names[3])
        last.on("error", errors.append).on("message", lambda *_: None)
        await eventually(lambda: errors)
        assert isinstance(errors[0], ChannelsExhaustedError)
        await held[0].cancel()
        await (await broker.publish("p", "x", timeout=30))
        assert broker.health().ready
