"""The recipes of docs/recovery.md do what the page says, on both brokers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_client import AckOrNack, Broker, Message
from broker_client.message import Delivery
from tests.docs.documents import Block, blocks, read
from tests.docs.fragments import run
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

PAGE = "docs/recovery.md"
BROKERS = ["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)]
_WAIT = re.compile(r"(?<=: )(\d+)(s|m)(?=[,}\n])")
_SECONDS = {"s": 1, "m": 60}


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "embedded":
        yield "embedded://"
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = server.make_vhost()
    yield server.url(vhost)
    server.delete_vhost(vhost)


def recipe(number: int) -> tuple[dict[str, Any], list[Block]]:
    """The vhost and the code of a recipe, its waits a hundred times shorter."""
    text = read(PAGE)
    first = text.count("\n", 0, text.index(f"\n## {number}. "))
    end = text.find(f"\n## {number + 1}. ")
    last = text.count("\n", 0, end if end >= 0 else len(text))
    mine = [block for block in blocks(PAGE) if first < block.line <= last]
    shown = "".join(block.text for block in mine if block.language == "yaml")
    quick = _WAIT.sub(lambda wait: f"{int(wait[1]) * _SECONDS[wait[2]] * 10}ms", shown)
    return yaml.safe_load(quick) or {}, [block for block in mine if block.language == "python"]


@asynccontextmanager
async def running(url: str, vhost: dict[str, Any]) -> AsyncIterator[Broker]:
    async with Broker.create({"vhosts": {"/": {"connection": url, **vhost}}}) as broker:
        yield broker


async def defined(code: list[Block], **given: Any) -> dict[str, Any]:
    """What `code` defines, with these names at hand."""
    for block in code:
        await run(block, given)
    return given


async def taken(broker: Broker, queue: str) -> Delivery:
    link = await broker.connect()
    channel = await link.open_channel()
    found: list[Delivery] = []

    async def take() -> bool:
        delivery = await channel.get(queue, no_ack=True)
        if delivery is not None:
            found.append(delivery)
        return bool(found)

    await eventually(take)
    await link.close()
    return found[0]


class Failing:
    """A handler that fails, and when it was called."""

    def __init__(self, *, only: object = None) -> None:
        self.at: list[float] = []
        self.contents: list[Any] = []
        self._only = only

    async def __call__(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        self.at.append(asyncio.get_running_loop().time())
        self.contents.append(content)
        if self._only is None or content == self._only:
            raise ValueError("no")
        await ack_or_nack()

    @property
    def waits(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.at, self.at[1:], strict=False)]


async def test_1_four_deliveries_and_then_the_queue_of_the_failed(url: str) -> None:
    vhost, _ = recipe(1)
    handle = Failing()
    async with running(url, vhost) as broker:
        subscription = await broker.subscribe("orders", handle)
        subscription.on("error", lambda error: None)
        await broker.publish("orders", {"id": 7}, "order.new")
        dead = await taken(broker, "failed")
    assert len(handle.at) == 4
    assert min(handle.waits) >= 0.05
    assert dead.routing_key == "order.new"
    assert dead.properties.headers is not None
    assert dead.properties.headers["rascal"]["recovery"]["orders"]["republished"] == 3


async def test_2_each_wait_is_longer_than_the_last(url: str) -> None:
    vhost, _ = recipe(2)
    handle = Failing()
    async with running(url, vhost) as broker:
        subscription = await broker.subscribe("orders", handle)
        subscription.on("error", lambda error: None)
        await broker.publish("orders", {"id": 7}, "order.new")
        await taken(broker, "failed")
    first, second, third = handle.waits
    assert (first >= 0.01, second >= 0.1, third >= 0.6) == (True, True, True)


async def test_3_others_go_on_while_it_waits(url: str) -> None:
    vhost, _ = recipe(3)
    vhost["publications"]["later"]["delay"] = "500ms"
    handle = Failing(only="bad")
    async with running(url, vhost) as broker:
        for content in ("bad", "good"):
            await (await broker.publish("orders", content, "order.new"))
        subscription = await broker.subscribe("orders", handle)
        subscription.on("error", lambda error: None)
        await eventually(lambda: len(handle.contents) == 3)
    assert handle.contents == ["bad", "good", "bad"]
    assert handle.at[2] - handle.at[0] >= 0.5


class CardDeclinedError(Exception):
    pass


async def test_4_what_is_hopeless_is_not_tried_again(url: str) -> None:
    vhost, _ = recipe(1)
    _, code = recipe(4)
    paid: list[str] = []

    async def pay(card: str, amount: int) -> None:
        paid.append(card)
        if card == "declined":
            raise CardDeclinedError
        if len(paid) < 3:
            raise ConnectionError

    names = await defined(code, pay=pay, CardDeclinedError=CardDeclinedError)
    async with running(url, vhost) as broker:
        subscription = await broker.subscribe("orders", names["charge"])
        subscription.on("error", lambda error: None)
        await broker.publish("orders", {"card": "declined", "amount": 1}, "order.new")
        await taken(broker, "failed")
        await broker.publish("orders", {"card": "good", "amount": 1}, "order.new")
        await eventually(lambda: subscription.stats().acked == 1)
    assert paid == ["declined", "good", "good"]


async def test_5_the_order_is_kept_although_the_first_fails(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost, code = recipe(5)
    entered: list[int] = []
    down = [True, True]

    async def enter(content: int) -> None:
        if down:
            down.pop()
            raise ConnectionError
        entered.append(content)

    names = await defined(code, enter=enter)
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(seconds / 100))
    async with running(url, vhost) as broker:
        await broker.subscribe("ledger", names["book"])
        for number in range(5):
            await broker.publish("ledger", number)
        await eventually(lambda: len(entered) == 5)
    assert entered == [0, 1, 2, 3, 4]


async def test_6_what_was_set_aside_says_why_and_comes_back(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vhost, code = recipe(6)
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        if len(handled) == 1:
            raise ValueError("out of cheese")
        await ack_or_nack()

    async with running(url, vhost) as broker:
        subscription = await broker.subscribe("orders", handle)
        subscription.on("error", lambda error: None)
        names = await defined(code, broker=broker)
        await broker.subscribe("parked", names["look"])
        await broker.publish("orders", "pizza", "order.new")
        await eventually(lambda: subscription.stats().acked == 1)
    assert handled == ["pizza", "pizza"]
    assert capsys.readouterr().out == "pizza order.new orders out of cheese\n"


async def test_7_fifth_delivery_is_dead_lettered_unseen(url: str, tmp_path: Path) -> None:
    vhost, _ = recipe(7)
    vhost["redeliveries"]["counters"]["on_disk"]["path"] = str(tmp_path / "redeliveries.db")
    vhost["subscriptions"]["orders"]["close_timeout"] = "10ms"
    url = f"embedded://{tmp_path}/broker.db" if url == "embedded://" else url
    seen: list[Any] = []

    async def die(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append(content)

    for number in range(1, 5):  # processes that end with the message unsettled
        async with running(url, vhost) as broker:
            await broker.subscribe("orders", die)
            if number == 1:
                await (await broker.publish("orders", "poison"))
            await eventually(lambda number=number: len(seen) == number)
            ending = asyncio.create_task(broker.shutdown())
            await asyncio.sleep(0)
            ending.cancel()  # an end in order would give the message back
            with suppress(asyncio.CancelledError):
                await ending
    async with running(url, vhost) as broker:
        await broker.subscribe("orders", die)
        await taken(broker, "failed")
    assert seen == ["poison"] * 4


async def test_8_it_stops_while_the_database_is_down_and_goes_on(url: str) -> None:
    vhost, _ = recipe(1)
    _, code = recipe(8)
    wake = asyncio.Event()

    class Database:
        rows: list[Any]
        calls = 0

        def __init__(self) -> None:
            self.rows, self.is_down = [], True

        async def insert(self, row: Any) -> None:
            self.calls += 1
            if self.is_down:
                raise ConnectionError
            self.rows.append(row)

    database = Database()
    async with running(url, vhost) as broker:
        subscription = await broker.subscribe("orders")
        names = await defined(code, database=database, subscription=subscription, wake=wake)
        going = asyncio.create_task(names["go_on"]())
        subscription.on("message", names["store"])
        await broker.publish("orders", 1, "order.new")
        await eventually(lambda: subscription.is_paused)
        await broker.publish("orders", 2, "order.new")
        calls = database.calls
        database.is_down = False
        wake.set()
        await eventually(lambda: sorted(database.rows) == [1, 2])
        going.cancel()
    assert calls == 1


async def test_9_second_delivery_is_acked_unseen(url: str, tmp_path: Path) -> None:
    vhost, _ = recipe(9)
    vhost["subscriptions"]["orders"]["deduplicate"]["path"] = str(tmp_path / "handled.db")
    handled: list[Any] = []
    async with running(url, vhost) as broker:
        subscription = await broker.subscribe("orders")
        subscription.handle(lambda content: handled.append(content))
        for _ in range(2):
            await broker.publish("orders", "pizza", message_id="m1")
            await eventually(lambda: len(handled) == 1 and subscription.stats().unsettled == 0)
        await eventually(lambda: subscription.stats().duplicates == 1)
    assert handled == ["pizza"]


def test_table_of_contents_leads_to_every_recipe() -> None:
    text = read(PAGE)
    headings = re.findall(r"^## (\d+)\. (.*)$", text, re.MULTILINE)
    anchors = [
        f"{number}-" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for number, title in headings
    ]
    linked = re.findall(r"^\|.*\[\d+\]\(#([^)]*)\) \|$", text, re.MULTILINE)
    assert linked == anchors
