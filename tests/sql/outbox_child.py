"""A process with an outbox, which `test_kill` kills: it commits orders, or relays them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from broker_client import Broker
from broker_client.sql import TransactionalOutbox

BATCH = 20


def a_config(url: str) -> dict[str, Any]:
    return {
        "vhosts": {
            "/": {
                "connection": url,
                "queues": ["orders"],
                "publications": {"orders": {"queue": "orders"}},
                "subscriptions": {"orders": {"queue": "orders"}},
            }
        }
    }


async def main(role: str, database: str, url: str, count: str) -> None:
    metadata = MetaData()
    outbox = TransactionalOutbox(metadata)
    engine = create_async_engine(database)
    if role == "commit":
        for number in range(int(count)):
            async with engine.begin() as connection:
                await outbox.publish(connection, "orders", number, message_id=f"m{number}")
        os.kill(os.getpid(), signal.SIGKILL)
    logging.basicConfig()
    async with (
        Broker.create(a_config(url)) as broker,
        outbox.relay(broker, engine, interval=0.02, batch=BATCH),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
