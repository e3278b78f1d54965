"""Log records name the message that is being handled, also during recovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from broker_client.log_context import MessageFilter, log_context, message_fields
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually

CONFIG = {
    "exchanges": ["dead"],
    "queues": {"work": {"options": {"dead_letter_exchange": "dead"}}, "cemetery": {}},
    "bindings": ["dead[#] -> cemetery"],
    "publications": {"work": {"queue": "work"}},
    "subscriptions": {
        "work": {
            "queue": "work",
            "recovery": [
                {"strategy": "republish", "defer": "1ms", "attempts": 1},
                {"strategy": "nack"},
            ],
        }
    },
}


class Recorder(logging.Handler):
    """A log handler that keeps records, with the filter."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(MessageFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    recorder = Recorder()
    logging.getLogger().addHandler(recorder)
    yield recorder.records
    logging.getLogger().removeHandler(recorder)


async def test_records_of_concurrent_handlers_name_their_own_message(
    start: StartBroker, records: list[logging.LogRecord]
) -> None:
    broker = await start(CONFIG)
    broker.middleware("handle")(log_context)
    both = asyncio.Barrier(2)

    @broker.handle("work")
    async def work(number: int) -> None:
        await both.wait()  # both messages are being handled
        logging.getLogger("app").warning("%d", number)

    await (await broker.publish("work", 1, message_id="one"))
    await (await broker.publish("work", 2, message_id="two"))
    await eventually(lambda: broker.stats().subscriptions["work"].acked == 2)
    told = {r.getMessage(): vars(r)["message_id"] for r in records if r.name == "app"}
    assert told == {"1": "one", "2": "two"}
    assert message_fields() == {}


async def test_records_of_a_plain_function_in_its_thread_name_the_message(
    start: StartBroker, records: list[logging.LogRecord]
) -> None:
    broker = await start(CONFIG)
    broker.middleware("handle")(log_context)

    @broker.handle("work")
    def work(number: int) -> None:
        logging.getLogger("app").warning("from a thread")

    await (await broker.publish("work", 1, message_id="one"))
    await eventually(lambda: broker.stats().subscriptions["work"].acked == 1)
    [record] = [r for r in records if r.name == "app"]
    assert (vars(record)["message_id"], vars(record)["subscription"]) == ("one", "work")


async def test_records_of_recovery_name_the_message_and_count_its_attempts(
    start: StartBroker, records: list[logging.LogRecord]
) -> None:
    broker = await start(CONFIG)
    broker.middleware("handle")(log_context)

    @broker.handle("work")
    async def work(number: int) -> Any:
        logging.getLogger("app").warning("trying")
        raise ValueError("never")

    await (await broker.publish("work", 1, message_id="one"))
    await eventually(lambda: broker.stats().subscriptions["work"].nacked == 1)
    told = [
        (vars(r)["message_id"], vars(r)["attempt"]) for r in records if r.getMessage() == "trying"
    ]
    assert told == [("one", 1), ("one", 2)]
    [dead] = [r for r in records if "dead-lettered" in r.getMessage()]
    assert (vars(dead)["message_id"], vars(dead)["attempt"]) == ("one", 2)
