"""Thousands of connects fail, in every way in which a connect can."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal

from broker_client.broker import Broker
from tests.faults.app import a_config
from tests.faults.conftest import Place
from tests.support.eventually import eventually

_WARM, _ATTEMPTS = 300, 2_000
_START = marshal(commands.Connection.Start(server_properties={"product": "none"}), 0)
_TUNE = marshal(commands.Connection.Tune(2047, 131_072, 5), 0)


def _close(code: int, text: str) -> Frame:
    return commands.Connection.Close(code, text, 0, 0)


_ANSWERS: dict[str, Sequence[bytes | None]] = {
    "resets at once": [None],
    "closes without a word": [],
    "is a web server": [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"],
    "wants another protocol": [b"AMQP\x00\x01\x00\x00"],
    "stops amid its first frame": [_START[:40]],
    "sends a frame without its end": [_START[:-1] + b"\x00"],
    "claims a frame of 2 GiB": [b"\x01\x00\x00\x7f\xff\xff\xff" + _START[7:]],
    "resets after the login": [_START, None],
    "closes after the login": [_START],
    "refuses the login": [_START, marshal(_close(403, "ACCESS_REFUSED"), 0)],
    "resets after the limits": [_START, _TUNE, None],
    "is starting": [_START, _TUNE, marshal(_close(541, "INTERNAL_ERROR - starting"), 0)],
    "is shut down": [_START, _TUNE, marshal(_close(320, "CONNECTION_FORCED"), 0)],
}
"""What a server says after each thing that it hears, and then closes; None is a reset."""


class BadServer:
    """Answers each connection in another of these ways."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Gives its port."""
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            port: int = server.sockets[0].getsockname()[1]
            yield port
        if self._serving:
            await asyncio.wait(self._serving)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = list(_ANSWERS)[self.refused.total() % len(_ANSWERS)]
        self.refused[way] += 1
        try:
            for answer in _ANSWERS[way]:
                if answer is None:
                    linger = struct.pack("ii", 1, 0)
                    raw = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    break
                await reader.read(65_536)
                writer.write(answer)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort() if None in _ANSWERS[way] else writer.close()


def _held() -> tuple[int, int, int]:
    """How many objects, tasks and file descriptors there are."""
    gc.collect()
    return len(gc.get_objects()), len(asyncio.all_tasks()), len(os.listdir("/dev/fd"))


@pytest.mark.timeout(180)
async def test_thousands_of_failed_connects_leave_nothing_behind_and_the_next_one_works(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    bad = BadServer()
    config = a_config(place.url, place.vhost, timeout="3m")
    config["vhosts"][place.vhost]["connection"]["retry"] = {"min": "1ms", "max": "1ms"}
    heard: list[str] = []
    async with bad.listening() as port, Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: heard.append(type(error).__name__))
        place.proxy.lead_to(port)
        place.proxy.cut()
        waiting = await broker.publish("a", "waited")
        await eventually(lambda: bad.refused.total() >= _WARM, timeout=60.0)
        before = _held()
        await eventually(lambda: bad.refused.total() >= _WARM + _ATTEMPTS, timeout=120.0)
        after = _held()
        place.proxy.lead_to(place.server.port)
        await waiting
    objects, tasks, descriptors = (now - then for now, then in zip(after, before, strict=True))
    assert objects < _ATTEMPTS, "objects are kept for each failed connect"
    assert tasks < 10, "tasks are kept for failed connects"
    assert descriptors < 20, "sockets are kept for failed connects"
    assert len(heard) > _ATTEMPTS
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2, "one line for the loss, and one for the refused login"
