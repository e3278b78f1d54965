"""What is left of a link is collected wherever the collector happens to work."""

from __future__ import annotations

import asyncio
import gc
import warnings

from yarl import URL

from broker_client.transport.network import _Connection


async def test_connection_collected_in_another_thread_starts_nothing() -> None:
    left = [_Connection(URL("amqp://localhost/"))]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        await asyncio.to_thread(left.clear)
        gc.collect()
    assert [str(each.message) for each in heard] == []
