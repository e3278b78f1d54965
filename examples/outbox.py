"""An order and its message in one transaction, and a shipment that a duplicate does not repeat.

python examples/outbox.py [DATABASE [URL]]

DATABASE is an address of SQLAlchemy, such as postgresql+asyncpg://localhost/shop; it gets tables.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from broker_client import Broker, Message
from broker_client.sql import Inbox, TransactionalOutbox

FOLDER = tempfile.TemporaryDirectory()
DATABASE = sys.argv[1] if len(sys.argv) > 1 else f"sqlite+aiosqlite:///{FOLDER.name}/shop.db"
CONFIG = {
    "vhosts": {
        "/": {
            "connection": sys.argv[2] if len(sys.argv) > 2 else "embedded://",
            "queues": {
                "outbox-example": {
                    "purge": True,
                    "options": {"dead_letter_exchange": "outbox-example-dead"},
                }
            },
            "exchanges": [{"name": "outbox-example-dead", "type": "fanout"}],
            "publications": {"orders": {"queue": "outbox-example"}},
            "subscriptions": {"orders": {"queue": "outbox-example"}},
        }
    }
}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Shipment(Base):
    __tablename__ = "example_shipments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


outbox = TransactionalOutbox(Base.metadata, config=CONFIG)
inbox = Inbox(Base.metadata)
engine = create_async_engine(DATABASE)
Database = async_sessionmaker(engine)


async def place_order(session: AsyncSession, item: str) -> str:
    """Add an order, and the message about it: both are committed, or neither."""
    order = Order(item=item)
    session.add(order)
    await session.flush()  # which gives it an id
    return await outbox.publish(session, "orders", {"id": order.id})


async def main() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    async with Broker.create(CONFIG) as broker, outbox.relay(broker, engine):
        handled: asyncio.Queue[str] = asyncio.Queue()

        @broker.handle("orders")
        async def ship(order: dict[str, int], message: Message) -> None:
            async with Database.begin() as session:
                if await inbox.accept(session, message):
                    session.add(Shipment(order_id=order["id"]))
            handled.put_nowait(message.message_id or "")

        async with Database() as session:
            await place_order(session, "tea")
            await session.rollback()
        async with Database.begin() as session:
            message_id = await place_order(session, "milk")
        assert await handled.get() == message_id

        # The relay would send it again if it died before it deleted the row.
        await (await broker.publish("orders", {"id": 1}, message_id=message_id))
        assert await handled.get() == message_id

    async with Database() as session:
        for table in (Order, Shipment):
            count = await session.scalar(select(func.count()).select_from(table))
            print(f"{table.__tablename__}: {count}")
    await engine.dispose()
    FOLDER.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
