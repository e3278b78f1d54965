"""A closed link is garbage-collected, in any thread."""

from __future__ import annotations

import asyncio
import gc
import warnings
from types import SimpleNamespace
from typing import Any, cast

from yarl import URL

from broker_client.transport.rabbitmq.connector import _Connection
from broker_client.transport.rabbitmq.link import NetworkLink
from broker_client.transport.rabbitmq.rewritten_frames import Limits


async def test_connection_collected_in_another_thread_starts_nothing() -> None:
    left = [_Connection(URL("amqp://localhost/"))]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        await asyncio.to_thread(left.clear)
        gc.collect()
    assert [str(each.message) for each in heard] == []


async def test_writer_that_ends_with_an_error_is_not_complained_of() -> None:
    async def fail() -> None:
        raise ConnectionResetError("reset")

    loop = asyncio.get_running_loop()
    complaints: list[str] = []
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    writer = loop.create_task(fail())
    underlay = SimpleNamespace(
        _writer_task=writer,
        connection_tune=SimpleNamespace(frame_max=4096, channel_max=7),
        server_properties={"capabilities": {}},
        closing=loop.create_future(),
    )
    callback = SimpleNamespace(finished=asyncio.Event())
    transport = SimpleNamespace(connection=underlay, close_callback=callback)
    link = NetworkLink("amqp://host/", 1.0, 0.0, Limits())
    link.established(cast(Any, SimpleNamespace(transport=transport)))
    await asyncio.wait([writer])
    del writer, underlay, transport, link
    gc.collect()
    assert complaints == []
