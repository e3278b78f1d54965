"""The outbox in an application's database: committed messages are published, and no others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from broker_client import Broker, Message
from broker_client.connection.substitutes import Substitutes
from broker_client.errors import (
    BrokerClientError,
    InvalidContentError,
    InvalidMessageError,
    MessageReturnedError,
    UnknownNameError,
)
from broker_client.sql import OutboxRelay, TransactionalOutbox
from broker_client.testing.faults import Faults
from tests.support.eventually import eventually
from tests.support.telemetry import telemetry

CONFIG: dict[str, Any] = {
    "vhosts": {
        "/": {
            "connection": {"url": "embedded://", "retry": {"min": "10ms", "max": "20ms"}},
            "exchanges": ["events"],
            "queues": ["orders", "refunds", "late"],
            "publications": {
                "orders": {"queue": "orders"},
                "refunds": {"queue": "refunds"},
                "events": {"exchange": "events"},
                "unconfirmed": {"queue": "orders", "confirm": False},
                "typed": {"queue": "orders", "options": {"content_type": "application/x-order"}},
            },
            "subscriptions": {"orders": {"queue": "orders"}, "refunds": {"queue": "refunds"}},
        }
    }
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.create(CONFIG) as broker:
        yield broker


@pytest.fixture
def session(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(engine)


def a_relay(
    outbox: TransactionalOutbox, broker: Broker, engine: AsyncEngine, batch: int = 50
) -> OutboxRelay:
    return outbox.relay(broker, engine, interval=0.02, batch=batch)


def received(broker: Broker, name: str = "orders") -> list[Message]:
    """Collects what arrives at a subscription."""
    messages: list[Message] = []

    @broker.handle(name)
    async def handle(content: object, message: Message) -> None:
        messages.append(message)

    return messages


async def rows_of(engine: AsyncEngine, outbox: TransactionalOutbox) -> tuple[int, int]:
    """The numbers of waiting and of failed messages."""
    async with engine.connect() as connection:
        counts = [
            await connection.scalar(select(func.count()).select_from(table))
            for table in (outbox.tables.waiting, outbox.tables.failed)
        ]
    return counts[0] or 0, counts[1] or 0


async def emptied(engine: AsyncEngine, outbox: TransactionalOutbox) -> None:
    async def is_empty() -> bool:
        return (await rows_of(engine, outbox))[0] == 0

    await eventually(is_empty)


# --------------------------------------------------------------------------- what arrives


async def test_committed_publish_arrives_as_one_without_an_outbox_would(
    engine: AsyncEngine,
    outbox: TransactionalOutbox,
    broker: Broker,
    session: async_sessionmaker[AsyncSession],
) -> None:
    messages = received(broker)
    options: dict[str, Any] = {
        "headers": {"at": datetime(2026, 1, 2, tzinfo=UTC), "raw": b"\xff", "n": 2**40, "f": 0.1},
        "priority": 3,
        "persistent": False,
        "correlation_id": "c1",
        "expiration": 60.5,
    }
    contents: list[Any] = [{"id": 7}, "text ü", b"\x00\xff", None]
    async with a_relay(outbox, broker, engine):
        async with session.begin() as transaction:
            for content in contents:
                await outbox.publish(transaction, "orders", content, **options)
            await outbox.publish(transaction, "typed", {"id": 8})
        await eventually(lambda: len(messages) == 5)
    for content in contents:
        await (await broker.publish("orders", content, **options))
    await (await broker.publish("typed", {"id": 8}))
    await eventually(lambda: len(messages) == 10)

    def facts(message: Message) -> Any:
        return message.body, message.properties._replace(message_id=None)

    relayed, direct = (sorted(part, key=lambda m: m.body) for part in (messages[:5], messages[5:]))
    assert [facts(each) for each in relayed] == [facts(each) for each in direct]
    assert await rows_of(engine, outbox) == (0, 0)


async def test_rolled_back_publish_is_never_sent(
    engine: AsyncEngine,
    outbox: TransactionalOutbox,
    broker: Broker,
    session: async_sessionmaker[AsyncSession],
) -> None:
    messages = received(broker)
    async with a_relay(outbox, broker, engine):
        async with session() as transaction:
            await outbox.publish(transaction, "orders", 1)
            await transaction.rollback()
        async with engine.begin() as connection:  # a plain connection will do as well
            message_id = await outbox.publish(connection, "orders", 2)
        await emptied(engine, outbox)
    await eventually(lambda: messages)
    assert [each.message_id for each in messages] == [message_id]


def test_session_without_asyncio_publishes_in_its_transaction(tmp_path: Any) -> None:
    metadata = MetaData()
    outbox = TransactionalOutbox(metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    metadata.create_all(engine)
    with Session(engine) as transaction:
        outbox.publish_sync(transaction, "orders", 1, message_id="rolled back")
    with Session(engine) as transaction, transaction.begin():
        outbox.publish_sync(transaction, "orders", 2, message_id="committed")
    with engine.begin() as connection:
        outbox.publish_sync(connection, "orders", 3, message_id="by a connection")
        waiting = connection.execute(select(outbox.tables.waiting.c.message_id)).scalars().all()
    assert waiting == ["committed", "by a connection"]
    engine.dispose()


async def test_several_relays_keep_the_order_of_each_publication_and_send_nothing_twice(
    engine: AsyncEngine, outbox: TransactionalOutbox, broker: Broker
) -> None:
    orders, refunds = received(broker), received(broker, "refunds")
    wanted: dict[str, list[str]] = {"orders": [], "refunds": []}
    for _ in range(30):
        async with engine.begin() as connection:
            for _ in range(10):
                name = random.choice(("orders", "refunds"))
                wanted[name].append(await outbox.publish(connection, name, len(wanted[name])))
    relays = [a_relay(outbox, broker, engine, batch=7) for _ in range(3)]
    async with relays[0], relays[1], relays[2]:
        await emptied(engine, outbox)
    await eventually(lambda: len(orders) + len(refunds) >= 300)
    assert [each.message_id for each in orders] == wanted["orders"]
    assert [each.message_id for each in refunds] == wanted["refunds"]
    assert sum(each.relayed for each in relays) == 300


async def test_another_relay_takes_over_where_one_stopped(
    engine: AsyncEngine, outbox: TransactionalOutbox, broker: Broker
) -> None:
    messages = received(broker)
    for number in range(2):
        async with a_relay(outbox, broker, engine):
            async with engine.begin() as connection:
                await outbox.publish(connection, "orders", number)
            await emptied(engine, outbox)
    await eventually(lambda: len(messages) == 2)


# --------------------------------------------------------------------------- what does not


async def test_refused_publish_is_set_aside_while_others_go_on_and_can_be_retried(
    engine: AsyncEngine, outbox: TransactionalOutbox, broker: Broker
) -> None:
    messages, errors = received(broker), list[BrokerClientError]()
    broker.on("error", lambda error, vhost: errors.append(error))
    async with a_relay(outbox, broker, engine) as relay:
        async with engine.begin() as connection:
            lost = await outbox.publish(connection, "events", {"id": 1}, "nowhere")
            await outbox.publish(connection, "nobody knows this", 2)
            await outbox.publish(connection, "unconfirmed", 3)
            await outbox.publish(connection, "orders", 4)
        await eventually(lambda: relay.failed == 3 and relay.relayed == 1)
        await eventually(lambda: messages)
        assert {type(each) for each in errors} == {
            MessageReturnedError,
            UnknownNameError,
            InvalidMessageError,
        }
        async with engine.connect() as connection:
            failed = outbox.tables.failed
            chosen = select(failed.c.error).where(failed.c.message_id == lost)
            assert "nowhere" in (await connection.scalar(chosen) or "")
        link = await broker.connect()
        await (await link.open_channel()).bind_queue("orders", "events", "nowhere")
        async with engine.begin() as connection:
            assert await outbox.retry(connection, lost) == 1
        await eventually(lambda: len(messages) == 2)
        await link.close()
    assert messages[1].message_id == lost
    assert await rows_of(engine, outbox) == (0, 2)


@pytest.mark.parametrize(
    ("publish", "error"),
    [
        ({"name": "order"}, UnknownNameError),
        ({"name": "unconfirmed"}, InvalidMessageError),
        ({"name": "n" * 300}, InvalidMessageError),
        ({"name": "orders", "routing_key": "k" * 256}, InvalidMessageError),
        ({"name": "orders", "headers": {"x": object()}}, InvalidMessageError),
        ({"name": "orders", "headers": {"x-death": [1]}}, InvalidMessageError),
        ({"name": "orders", "message_id": "m" * 256}, InvalidMessageError),
        ({"name": "orders", "colour": "red"}, InvalidMessageError),
        ({"name": "orders", "content": object()}, InvalidContentError),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
async def test_wrong_publish_is_refused_within_the_transaction(
    engine: AsyncEngine, publish: dict[str, Any], error: type[Exception]
) -> None:
    checked = TransactionalOutbox(MetaData(), config=CONFIG)
    async with engine.begin() as connection:
        with pytest.raises(error):
            await checked.publish(connection, **{"content": 1, **publish})
    assert await rows_of(engine, checked) == (0, 0)


async def test_relay_without_its_tables_does_not_start(engine: AsyncEngine, broker: Broker) -> None:
    elsewhere = TransactionalOutbox(MetaData(), prefix="not_migrated_")
    with pytest.raises(SQLAlchemyError, match="not_migrated_outbox"):
        async with elsewhere.relay(broker, engine):
            pass


@pytest.mark.parametrize("setting", ["interval", "batch", "concurrency"])
async def test_relay_with_a_setting_of_nothing_is_refused(
    engine: AsyncEngine, outbox: TransactionalOutbox, broker: Broker, setting: str
) -> None:
    with pytest.raises(ValueError, match=setting):
        outbox.relay(broker, engine, **{setting: 0})


# --------------------------------------------------------------------------- faults


async def test_publishes_of_a_broker_that_is_away_wait_and_arrive_in_order(
    engine: AsyncEngine, outbox: TransactionalOutbox
) -> None:
    faults = Faults()
    substitutes = Substitutes(None, faults.connector)
    async with Broker.create(CONFIG, substitutes=substitutes) as broker:
        messages = received(broker)
        async with a_relay(outbox, broker, engine, batch=5) as relay:
            with faults.refuse():
                faults.lose_link()
                async with engine.begin() as connection:
                    sent = [await outbox.publish(connection, "orders", n) for n in range(40)]
                await eventually(lambda: not broker.health().ready)
                assert relay.relayed == 0
            await eventually(lambda: relay.relayed >= 5)
            faults.lose_link()  # in the middle of it
            await emptied(engine, outbox)
        await eventually(lambda: len({each.message_id for each in messages}) == 40)
    assert list(dict.fromkeys(each.message_id for each in messages)) == sent


async def test_relay_goes_on_after_its_database_was_away(
    engine: AsyncEngine, outbox: TransactionalOutbox, broker: Broker
) -> None:
    table = outbox.tables.waiting
    async with a_relay(outbox, broker, engine) as relay:
        async with engine.begin() as connection:
            await connection.run_sync(table.drop)
        async with engine.begin() as connection:
            await connection.run_sync(table.create)
            await outbox.publish(connection, "orders", 1)
        await eventually(lambda: relay.relayed == 1)


async def test_relay_stops_by_itself_when_its_broker_was_shut_down(
    engine: AsyncEngine, outbox: TransactionalOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await Broker.create(CONFIG)
    async with a_relay(outbox, broker, engine) as relay:
        await broker.shutdown()
        async with engine.begin() as connection:
            await outbox.publish(connection, "orders", 1)
        await eventually(lambda: "stopped" in repr(relay))
    assert await rows_of(engine, outbox) == (1, 0)


# --------------------------------------------------------------------------- traces, migrations


async def test_trace_goes_on_through_the_outbox(engine: AsyncEngine, metadata: MetaData) -> None:
    recorded = telemetry()
    recorded.spans.clear()
    from opentelemetry import trace

    config = {**CONFIG, "tracing": {"process": "parent"}}
    outbox = TransactionalOutbox(MetaData(), config=config)
    async with Broker.create(config) as broker, a_relay(outbox, broker, engine):
        messages = received(broker)
        with trace.get_tracer("app").start_as_current_span("request") as request:
            async with engine.begin() as connection:
                await outbox.publish(connection, "orders", 1, headers={"tenant": "acme"})
        await eventually(lambda: recorded.named("process orders"))
    [publish], [process] = recorded.named("publish orders"), recorded.named("process orders")
    ours = request.get_span_context()
    assert publish.parent is not None
    assert process.parent is not None
    assert publish.context is not None
    assert publish.parent.span_id == ours.span_id
    assert process.parent.span_id == publish.context.span_id
    assert messages[0].headers["tenant"] == "acme"
    recorded.spans.clear()


async def test_alembic_sees_the_tables(
    database_url: str, metadata: MetaData, outbox: TransactionalOutbox, engine: AsyncEngine
) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    other = MetaData()
    TransactionalOutbox(other, prefix="app_")

    def compare(wanted: MetaData) -> Any:
        return lambda connection: compare_metadata(MigrationContext.configure(connection), wanted)

    async with engine.connect() as connection:
        assert await connection.run_sync(compare(metadata)) == []
        changes = await connection.run_sync(compare(other))
    added = {change[1].name for change in changes if change[0] == "add_table"}
    assert added == {"app_outbox", "app_outbox_failed", "app_outbox_publications"}
