"""The headers that recovery adds to a copy, and the outcomes of copies, on both brokers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from broker_client import Broker, Message
from broker_client.config import ShovelConfig
from broker_client.consuming.shovels import Shovel
from broker_client.errors import InvalidMessageError
from broker_client.message import Outgoing, Properties
from broker_client.subscription import Subscription
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually


def a_config(recovery: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "exchanges": ["dead"],
        "queues": {
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "aside": {"options": {"dead_letter_exchange": "dead"}},
            "cemetery": {},
        },
        "bindings": ["dead[#] -> cemetery"],
        "publications": {"work": {"queue": "work"}, "aside": {"queue": "aside"}},
        "subscriptions": {
            "work": {"queue": "work", "recovery": recovery},
            "aside": {"queue": "aside"},
            "cemetery": {"queue": "cemetery"},
        },
        **changes,
    }


async def keeping(broker: Broker, name: str) -> tuple[Subscription, list[Message]]:
    """The subscription `name`, and the messages it gets and acks."""
    subscription, kept = await broker.subscribe(name), []

    def keep(content: Any, message: Message) -> None:
        kept.append(message)

    subscription.handle(keep)
    return subscription, kept


def failing(subscription: Subscription, error: Exception) -> list[int]:
    """Fail every message of `subscription`; the list has the number of tries of each."""
    tries: list[int] = []

    async def fail(content: Any, message: Message) -> None:
        tries.append(message.tries)
        raise error

    subscription.on("error", lambda error: None)
    subscription.handle(fail)
    return tries


class BadCodeError(Exception):
    @property
    def code(self) -> int:
        raise GeneratorExit


class CodedError(Exception):
    def __init__(self, text: str, code: object) -> None:
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        ValueError("half a character: \udc80"),
        CodedError("bad", "E" * 200_000),
        CodedError("bad", 2**70),
        TimeoutError(),
        BadCodeError(),
    ],
    ids=["surrogate", "long-code", "large-code", "no-text", "bad-code"],
)
async def test_message_is_retried_whatever_its_error_says(
    start: StartBroker, error: Exception
) -> None:
    broker = await start(a_config([{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}]))
    subscription = await broker.subscribe("work")
    tries = failing(subscription, error)
    _, dead = await keeping(broker, "cemetery")
    await (await broker.publish("work", "x"))
    await eventually(lambda: dead)
    assert tries == [1, 2, 3]
    assert dead[0].headers["rascal"]["error"]["name"] == type(error).__name__
    # A copy may be handled before its confirm has come, which settles its original.
    await eventually(lambda: subscription.stats().unsettled == 0)
    assert subscription.stats().republished == 2


async def test_message_whose_headers_leave_no_room_for_the_error_is_retried_without_it(
    start: StartBroker,
) -> None:
    broker = await start(a_config([{"strategy": "republish", "attempts": 1}, {"strategy": "nack"}]))
    tries = failing(await broker.subscribe("work"), ValueError("e" * 2_000))
    _, dead = await keeping(broker, "cemetery")
    large = {f"h{number}": "v" * 10_000 for number in range(13)}
    await (await broker.publish("work", "x", headers=large))
    await eventually(lambda: dead)
    assert tries == [1, 2]
    assert dead[0].headers["h12"] == "v" * 10_000


@pytest.mark.parametrize(
    "chain",
    [
        [{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}],
        [{"strategy": "forward", "publication": "aside", "attempts": 2}, {"strategy": "nack"}],
    ],
    ids=lambda chain: chain[0]["strategy"],
)
async def test_message_whose_headers_leave_no_room_for_any_history_is_retried_as_often(
    start: StartBroker, chain: list[dict[str, Any]]
) -> None:
    config = a_config(chain)
    config["subscriptions"]["work"]["requeue_defer"] = {"min": "10ms", "max": "10ms"}
    broker = await start(config)
    subscription = await broker.subscribe("work")
    tries = failing(subscription, ValueError("bad"))
    failures: list[Exception] = []
    subscription.on("recovery_failed", failures.append)
    _, dead = await keeping(broker, "cemetery")
    await (await broker.publish("work", "x", headers=NO_ROOM))
    await eventually(lambda: dead)
    assert tries == [1, 2, 3]
    assert len(failures) == 3
    assert "headers make a frame of" in str(failures[0])


DIED = {"queue": "work", "reason": "rejected"}
RETRY_AND_NACK: list[dict[str, Any]] = [
    {"strategy": "republish", "attempts": 1},
    {"strategy": "forward", "publication": "work", "attempts": 1},
    {"strategy": "nack"},
]


async def publish_raw(broker: Broker, *messages: Outgoing) -> None:
    """Publish like a client that checks nothing."""
    link = await broker.connect()
    channel = await link.open_channel()
    await channel.publish(list(messages))
    await link.close()


@pytest.mark.parametrize(
    ("chain", "key", "expected"),
    [
        (RETRY_AND_NACK, None, [1, 2, 3]),
        (RETRY_AND_NACK[-1:], None, [1]),
        (RETRY_AND_NACK[-1:], "dead.work", [1]),
    ],
    ids=["retries", "nack", "nack-with-key"],
)
@pytest.mark.parametrize(
    "deaths",
    [[1], [[DIED]], [{**DIED, "count": "x"}], [{**DIED, "count": 1.5}]],
    ids=["numbers", "arrays", "text-count", "float-count"],
)
async def test_message_whose_deaths_nobody_can_count_is_recovered_and_costs_no_consumer(
    start: StartBroker,
    deaths: list[Any],
    chain: list[dict[str, Any]],
    key: str | None,
    expected: list[int],
) -> None:
    """RabbitMQ's own queue fails over them, and delivers the message again and again."""
    config = a_config(chain)
    if key is not None:
        config["queues"]["work"]["options"]["dead_letter_routing_key"] = key
    broker = await start(config)
    subscription = await broker.subscribe("work")
    tries = failing(subscription, ValueError("bad"))
    lost: list[str] = []
    subscription.on("cancelled", lambda error: lost.append(str(error)))
    _, dead = await keeping(broker, "cemetery")
    hostile = Properties(message_id="m", headers={"x-death": deaths})
    await publish_raw(broker, Outgoing("", "work", b"x", hostile))
    await eventually(lambda: dead)
    assert (tries, lost) == (expected, [])
    [death] = dead[0].headers["x-death"]
    assert (death["queue"], death["count"]) == ("work", 1)
    assert dead[0].delivery.routing_key == (key or "work")


async def test_counters_of_a_header_that_cannot_be_are_taken_for_what_they_can(
    start: StartBroker,
) -> None:
    broker = await start(a_config([{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}]))
    tries: dict[str, list[int]] = {}

    async def fail(content: Any, message: Message) -> None:
        tries.setdefault(content, []).append(message.tries)
        raise ValueError("bad")

    subscription = await broker.subscribe("work")
    subscription.on("error", lambda error: None)
    failures: list[Exception] = []
    subscription.on("recovery_failed", failures.append)
    subscription.handle(fail)
    _, dead = await keeping(broker, "cemetery")
    most = 2**63 - 1
    histories: dict[str, Any] = {
        "large": {"tries": most, "recovery": {"work": {"republished": most}}},
        "many": {"tries": most},
        "negative": {"tries": -5, "recovery": {"work": {"republished": -most}}},
        "truth": {"tries": True, "recovery": {"work": {"republished": True}}},
    }
    for content, history in histories.items():
        await (await broker.publish("work", content, headers={"rascal": history}))
    await eventually(lambda: len(dead) == len(histories))
    assert failures == []
    counts = {content: len(each) for content, each in tries.items()}
    assert counts == {"large": 1, "many": 3, "negative": 3, "truth": 3}
    assert tries["negative"] == tries["truth"] == [1, 2, 3]


async def test_publish_of_deaths_that_a_queue_fails_over_is_refused_at_the_call(
    start: StartBroker,
) -> None:
    broker = await start(a_config([]))
    with pytest.raises(InvalidMessageError, match=r"headers\['x-death'\] has a form"):
        await broker.publish("work", "x", headers={"x-death": [{**DIED, "count": 1.5}]})


NO_ROOM = {"h": "v" * 130_880}
"""Headers that leave no room for what recovery adds."""


async def test_message_without_room_for_a_history_is_forwarded_without_one_if_nothing_is_counted(
    start: StartBroker,
) -> None:
    broker = await start(a_config([{"strategy": "forward", "publication": "aside"}]))
    tries = failing(await broker.subscribe("work"), ValueError("bad"))
    _, kept = await keeping(broker, "aside")
    await (await broker.publish("work", "x", headers=NO_ROOM))
    await eventually(lambda: kept)
    assert (tries, kept[0].content_type, kept[0].headers["h"]) == ([1], "text/plain", NO_ROOM["h"])


async def test_message_without_room_for_a_history_is_republished_for_ever_if_so_configured(
    start: StartBroker,
) -> None:
    broker = await start(a_config([{"strategy": "republish", "defer": "10ms"}]))
    subscription = await broker.subscribe("work")
    tries = failing(subscription, ValueError("bad"))
    await (await broker.publish("work", "x", headers=NO_ROOM))
    await eventually(lambda: len(tries) > 3 and subscription.stats().republished >= 3)


@pytest.mark.parametrize(
    "chain",
    [
        [{"strategy": "forward", "publication": "aside", "options": {"headers": {"o": "v" * 300}}}],
        [{"strategy": "republish", "immediate_nack": True}],
    ],
    ids=lambda chain: chain[0]["strategy"],
)
async def test_message_whose_copy_can_never_be_sent_is_dead_lettered_at_once(
    start: StartBroker, chain: list[dict[str, Any]]
) -> None:
    broker = await start(a_config(chain))
    subscription = await broker.subscribe("work")
    tries = failing(subscription, ValueError("bad"))
    failures: list[Exception] = []
    subscription.on("recovery_failed", failures.append)
    _, dead = await keeping(broker, "cemetery")
    await (await broker.publish("work", "x", headers=NO_ROOM))
    await eventually(lambda: dead)
    assert (tries, len(failures)) == ([1], 1)
    assert dead[0].headers["h"] == NO_ROOM["h"]


async def test_dead_letter_of_ours_without_room_for_its_death_is_left_to_the_broker(
    start: StartBroker,
) -> None:
    broker = await start(a_config([{"strategy": "nack"}]))
    tries = failing(await broker.subscribe("work"), ValueError("bad"))
    _, dead = await keeping(broker, "cemetery")
    history = {
        "originalExchange": "orders",
        "originalRoutingKey": "placed",
        "recovery": {"work": {"republished": 1}},
    }
    headers = {"rascal": history, "h": "v" * 130_700}
    await (await broker.publish("work", "x", headers=headers))
    await eventually(lambda: dead)
    assert (tries, dead[0].headers["x-death"][0]["count"]) == ([1], 1)


@pytest.mark.parametrize("room", [0, 300], ids=["for-nothing", "for-no-note"])
async def test_shovel_passes_on_or_dead_letters_what_has_no_room_for_its_note(
    start: StartBroker, room: int
) -> None:
    config = a_config([], shovels={"move": "work -> aside"})
    config["publications"]["aside"]["options"] = {"headers": {"p": "v" * (300 - room)}}
    broker = await start(config)
    _, moved = await keeping(broker, "aside")
    _, dead = await keeping(broker, "cemetery")
    failures: list[Exception] = []
    broker.on("error", lambda error, vhost: failures.append(error))
    await (await broker.publish("work", "x", headers=NO_ROOM))
    await (await broker.publish("work", "y"))
    await eventually(lambda: len(moved) + len(dead) == 2)
    assert (len(moved), len(dead), len(failures)) == ((2, 0, 0) if room else (1, 1, 1))


@pytest.mark.parametrize("way", ["republish", "forward", "shovel", "forward by hand"])
async def test_copy_carries_the_user_id_of_another_in_a_header(
    start: StartBroker, way: str
) -> None:
    """RabbitMQ refuses a user_id that is not the publisher's; the message comes from elsewhere."""
    chains: dict[str, list[dict[str, Any]]] = {
        "republish": [{"strategy": "republish", "attempts": 1}],
        "forward": [{"strategy": "forward", "publication": "aside"}],
    }
    chain = chains.get(way, [{"strategy": "nack"}])
    shovels = {"move": "work -> aside"} if way == "shovel" else {}
    broker = await start(a_config(chain, shovels=shovels))
    got: list[Message] = []

    async def handle(content: Any, message: Message) -> None:
        if message.properties.user_id is None:
            got.append(message)
            return
        if way == "forward by hand":
            await (await broker.forward("aside", message))
            return
        raise ValueError("bad")

    for name in ("work", "aside") if way != "shovel" else ("aside",):
        subscription = await broker.subscribe(name)
        subscription.on("error", lambda error: None)
        subscription.handle(handle)
    await (await broker.publish("work", "x", user_id="guest"))
    await eventually(lambda: got)
    assert got[0].headers["x-original-user-id"] == "guest"


# --------------------------------------------------------------------------- tries


async def test_tries_count_over_republishing_forwarding_and_redelivery(start: StartBroker) -> None:
    quick = {"min": "10ms", "max": "10ms"}
    broker = await start(
        a_config(
            [
                {"strategy": "republish", "attempts": 2},
                {"strategy": "forward", "publication": "aside", "attempts": 1},
            ],
            subscriptions={
                "work": {
                    "queue": "work",
                    "recovery": [
                        {"strategy": "republish", "attempts": 2},
                        {"strategy": "forward", "publication": "aside"},
                    ],
                },
                "aside": {"queue": "aside", "requeue_defer": quick},
            },
        )
    )
    here = failing(await broker.subscribe("work"), ValueError("bad"))
    there = failing(await broker.subscribe("aside"), ValueError("bad"))
    await (await broker.publish("work", "x"))
    await eventually(lambda: len(there) >= 3)
    assert (here, there[:3]) == ([1, 2, 3], [4, 5, 6])


# --------------------------------------------------------------------------- given up


async def test_message_that_is_given_up_says_so_once_in_the_log_and_by_an_event(
    start: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start(a_config([{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}]))
    subscription = await broker.subscribe("work")
    failing(subscription, ValueError("no such article"))
    told: list[tuple[Message, Any]] = []
    subscription.on("dead_lettered", lambda message, error: told.append((message, error)))
    with caplog.at_level(logging.WARNING, "broker_client.subscription"):
        await (await broker.publish("work", "x", message_id="m1"))
        await eventually(lambda: told)
        await eventually(lambda: subscription.stats().unsettled == 0)
    [(message, error)] = told
    assert (message.message_id, message.tries, str(error)) == ("m1", 3, "no such article")
    lines = [each.getMessage() for each in caplog.records if "dead-lettered" in each.getMessage()]
    assert lines == [
        "subscription work: message m1 was dead-lettered (dropped, if work has no dead-letter "
        "exchange) after 3 tries: ValueError: no such article"
    ]


@pytest.mark.parametrize(("keep", "expected"), [(False, [1, 2, 3]), (True, [3, 3])])
async def test_dead_letter_that_a_shovel_moves_back_starts_anew_unless_told_otherwise(
    start: StartBroker, keep: bool, expected: list[int]
) -> None:
    chain: list[dict[str, Any]] = [{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}]
    broker = await start(a_config(chain))
    tries = failing(await broker.subscribe("work"), ValueError("bad"))
    await (await broker.publish("work", "x"))
    cemetery = await broker.subscribe("cemetery")
    back = ShovelConfig(
        name="back", subscription="cemetery", publication="work", keep_counters=keep
    )
    await eventually(lambda: tries == [1, 2, 3])
    moved = Shovel(back, broker._publisher, broker)
    moved.start(cemetery)
    await eventually(lambda: len(tries) >= 3 + len(expected))
    await cemetery.pause()
    assert tries[3 : 3 + len(expected)] == expected
