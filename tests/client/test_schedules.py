"""Schedules on every broker: published once for all processes, also when one of them ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker_client import Broker, Message
from broker_client.connection.substitutes import Substitutes
from broker_client.errors import ConfigError, MessageReturnedError
from broker_client.testing.faults import Faults
from broker_client.testing.harness import harness
from broker_client.testing.virtual_time import VirtualTimeLoop
from tests.support.eventually import eventually

HOUR = 3600.0


class ShiftedClock:
    """The time of day, `shift` seconds later."""

    def __init__(self, shift: float) -> None:
        self._shift = shift

    def now(self) -> float:
        return time.time() + self._shift


def a_config(url: str, schedules: Mapping[str, Any]) -> dict[str, Any]:
    retry = {"min": "20ms", "max": "100ms"}
    return {
        "vhosts": {
            "/": {
                "connection": {"url": url, "retry": retry},
                "queues": ["ticks"],
                "publications": {"ticks": {"queue": "ticks"}},
                "subscriptions": {"ticks": {"queue": "ticks", "retry": retry}},
            }
        },
        "schedules": schedules,
    }


def received(broker: Broker) -> list[Message]:
    messages: list[Message] = []

    @broker.handle("ticks")
    async def handle(content: object, message: Message) -> None:
        messages.append(message)

    return messages


def of_schedule(messages: list[Message], name: str) -> list[Message]:
    return [each for each in messages if each.headers["x-schedule"] == name]


def ids(messages: list[Message]) -> list[str]:
    return [each.message_id or "" for each in messages]


SHARED = pytest.mark.parametrize(
    "url", ["server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)], indirect=True
)
"""Brokers that several processes may use."""


@pytest.fixture
async def observed(url: str) -> AsyncIterator[tuple[str, list[Message]]]:
    """The address of a broker that several may use, and the messages that arrive there."""
    async with Broker.create(a_config(url, {})) as broker:
        yield url, received(broker)


@SHARED
async def test_fleet_publishes_each_time_once_and_goes_on_when_the_active_process_goes(
    observed: tuple[str, list[Message]],
) -> None:
    url, messages = observed
    # A busy machine may be late by more than a second.
    config = a_config(url, {"tick": {"publication": "ticks", "every": "1s", "missed": "all"}})
    faults = [Faults() for _ in range(3)]
    async with AsyncExitStack() as stack:
        fleet = [
            await stack.enter_async_context(
                Broker.create(config, substitutes=Substitutes(connector=each.connector))
            )
            for each in faults
        ]
        await eventually(lambda: len(messages) >= 2)
        await fleet[0].shutdown()
        assert len(set(ids(messages))) == len(messages)  # a shutdown repeats nothing
        seen = len(messages)
        await eventually(lambda: len(messages) >= seen + 2)
        with faults[1].refuse():
            faults[1].lose_link()
            seen = len(messages)
            await eventually(lambda: len(messages) >= seen + 2)
    found = list(dict.fromkeys(ids(messages)))
    # The link was lost with a publish in flight: the next process repeats it, and perhaps also the
    # one that has reconnected.
    assert len(messages) - len(found) <= 2
    moments = {each.properties.timestamp for each in messages}
    seconds = [each.timestamp() for each in moments if each is not None]
    assert sorted(seconds) == [min(seconds) + n for n in range(len(found))]
    assert found == sorted(found)
    assert messages[0].headers["x-schedule"] == "tick"


@SHARED
@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1), ("all", 24)])
async def test_what_was_missed_while_no_process_ran_is_published_as_it_says(
    observed: tuple[str, list[Message]], missed: str, count: int
) -> None:
    url, messages = observed
    schedule = {"publication": "ticks", "every": "1h", "missed": missed, "content": {"job": 1}}
    config = a_config(url, {"hourly": schedule, "marker": {"publication": "ticks", "every": "1s"}})
    began = (time.time() // HOUR) * HOUR + HOUR / 2 - time.time()  # at half past
    for shift, wanted in ((began, 0), (began + 24 * HOUR, count)):
        messages.clear()
        async with Broker.create(config, substitutes=Substitutes(clock=ShiftedClock(shift))):
            await eventually(lambda: len(of_schedule(messages, "marker")) > 2)
            await eventually(lambda n=wanted: len(of_schedule(messages, "hourly")) >= n)
    hourly = of_schedule(messages, "hourly")
    assert len(hourly) == count
    assert all(each.body == b'{"job":1}' for each in hourly)


async def test_schedule_of_what_no_queue_takes_reports_it_and_goes_on(url: str) -> None:
    config = a_config(url, {"tick": {"publication": "/nowhere", "every": "1s"}})
    config["vhosts"]["/"]["exchanges"] = ["nowhere"]
    errors: list[Exception] = []
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: errors.append(error))
        await eventually(lambda: len(errors) >= 2)
    assert {type(each) for each in errors} == {MessageReturnedError}


# --------------------------------------------------------------------------- virtual time


def in_virtual_time(config: Mapping[str, Any], hours: float) -> list[Message]:
    """The messages that arrive in `hours`, with the built-in broker."""

    async def run() -> list[Message]:
        async with harness(config, "embedded://") as made:
            messages = received(made.broker)
            await asyncio.sleep(hours * HOUR)
            return messages

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def test_day_of_a_schedule_takes_no_time() -> None:
    cron = {"publication": "ticks", "cron": "30 6,18 * * *", "timezone": "Europe/Berlin"}
    schedules = {"every": {"publication": "ticks", "every": "2h"}, "cron": cron}
    messages = in_virtual_time(a_config("embedded://", schedules), 25)
    by_name = {name: of_schedule(messages, name) for name in schedules}
    assert {name: len(found) for name, found in by_name.items()} == {"every": 12, "cron": 2}
    assert len(set(ids(messages))) == 14
    moments = [each.properties.timestamp for each in by_name["cron"]]
    assert sorted(each.strftime("%H:%M") for each in moments if each) == ["05:30", "17:30"]


# --------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"publication": "ticks"}, "either every or cron"),
        ({"publication": "ticks", "every": "5m", "cron": "* * * * *"}, "either every or cron"),
        ({"publication": "ticks", "every": "100ms"}, "every"),
        ({"publication": "ticks", "cron": "61 * * * *"}, "cannot be read: Bad minute"),
        ({"publication": "ticks", "cron": "0 0 30 2 *"}, "cron"),
        ({"publication": "ticks", "cron": "nightly"}, "five fields"),
        ({"publication": "ticks", "cron": "* * * * *", "timezone": "Mars/Base"}, "time zone"),
        ({"publication": "ticks", "every": "5m", "timezone": "Europe/Berlin"}, "is for cron"),
        ({"publication": "tick", "every": "5m"}, "unknown publication 'tick'.*ticks"),
        ({"publication": "ticks", "every": "5m", "missed": "some"}, "missed"),
        ({"publication": "loose", "every": "5m"}, "confirm: false"),
    ],
)
async def test_wrong_schedule_is_a_mistake_of_the_configuration(
    schedule: dict[str, Any], message: str
) -> None:
    config = a_config("embedded://", {"nightly": schedule})
    config["vhosts"]["/"]["publications"]["loose"] = {"queue": "ticks", "confirm": False}
    with pytest.raises(ConfigError, match=message):
        await Broker.create(config)
