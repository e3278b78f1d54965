"""For how long what happens to many messages at one moment holds the broker's event loop.

    python -m bench.broker_holds                       # 50,000 messages, in memory
    python -m bench.broker_holds --on file             # a node with a file
    python -m bench.broker_holds --messages 5000       # a quick look
    python -m bench.broker_holds --only purge,expire   # those whose names begin so
    python -m bench.broker_holds --why                 # and what the longest callback did

As in `bench.dashboard_holds`, a node with everything that ``serve`` has runs in one event loop, and
a client asks from a thread or another process. Each row has a queue of its own, which is filled
first. It tells the longest callback of the loop in processor time and by the clock, how much of
it was Python's garbage collector, and how long it took until all was done.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiormq
import httpx

from bench.dashboard_holds import Client, Request
from bench.holds import HEADINGS, Holds
from bench.machine import facts
from broker_client.cli.serve import collect_less
from broker_client.message import Outgoing, Properties
from broker_client.node.node import Node
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.served_node import served_node

_BODY = b'{"order": 1, "customer": "Ada Lovelace", "lines": [{"sku": "A-1", "count": 2}]}'
_BATCH = 1_000
_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
_PERSISTENT = aiormq.spec.Basic.Properties(delivery_mode=2)
_SOON = 3.0  # seconds: longer than it takes to fill a queue


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row acts."""

    node: Node
    url: str
    api: Client
    queue: str
    count: int
    holds: Holds


Act = Callable[[Place], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured: `act` on a queue that is filled, and has been `prepared`."""

    name: str
    act: Act
    arguments: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] | None = None
    unacked: bool = False
    """A consumer has it all."""
    then: Callable[[Place], bool] = lambda place: True
    """True once all is done."""


def _figure(place: Place, name: str) -> int:
    found = [each for each in place.node.engine.stats() if each.name == place.queue]
    return int(getattr(found[0], name)) if found else 0


def _none(name: str) -> Callable[[Place], bool]:
    return lambda place: _figure(place, name) == 0


def _all(name: str, *, of: int = 1) -> Callable[[Place], bool]:
    return lambda place: _figure(place, name) >= place.count * of


def _is_short(place: Place) -> bool:
    return _figure(place, "ready") <= 10


def _asks(method: str, path: str, body: Any = None) -> Act:
    """A request of the management API; ``{queue}`` in the path is the queue."""

    async def act(place: Place) -> None:
        asked = Request(method, path.replace("{queue}", place.queue), body)
        status, read = await asyncio.to_thread(place.api.ask, asked)
        gone = status == 404 and method == "DELETE"
        assert status < 400 or gone, (asked, status, read[:300])

    return act


async def _nothing(place: Place) -> None:
    """Time does it."""


async def _cancel_named(place: Place) -> None:
    ids = [each.id for each in place.node.deferred(place.queue, most=place.count)]
    await asyncio.sleep(0)
    place.holds.forget()
    await _asks("POST", "/api/queues/%2F/{queue}/deferred/cancel", {"ids": ids})(place)


async def _run_named(place: Place) -> None:
    ids = [each.id for each in place.node.deferred(place.queue, most=place.count)]
    await asyncio.sleep(0)
    place.holds.forget()
    await _asks("POST", "/api/queues/%2F/{queue}/deferred/run", {"ids": ids})(place)


def _policy(definition: dict[str, Any]) -> Act:
    body = {"pattern": "^{queue}$", "definition": definition}

    async def act(place: Place) -> None:
        text = json.dumps(body).replace("{queue}", place.queue)
        await _asks("PUT", "/api/policies/%2F/short", json.loads(text))(place)

    return act


_LATER = {"x-delay": 3_600_000}
_IN_FLIGHT = {"ready": False, "deferred": False, "in_flight": True}
_WARM = ("list in flight", "list deferred", "purge in flight", "run deferred", "shorten by policy")
"""Done first with few: a process imports what it needs when it is asked for the first time."""
_API = "/api/queues/%2F/{queue}"
ROWS = [
    Row("list in flight", _asks("GET", f"{_API}/in-flight"), unacked=True),
    Row("list deferred", _asks("GET", f"{_API}/deferred"), headers=_LATER),
    Row("purge in flight", _asks("POST", f"{_API}/purge", _IN_FLIGHT), unacked=True),
    Row("purge ready", _asks("DELETE", f"{_API}/contents")),
    Row("purge deferred", _asks("POST", f"{_API}/purge", {"deferred": True}), headers=_LATER),
    Row("cancel deferred by id", _cancel_named, headers=_LATER),
    Row("run deferred by id", _run_named, headers=_LATER, then=_none("deferred")),
    Row("run deferred", _asks("POST", f"{_API}/deferred/run"), headers=_LATER),
    Row("delete a long queue", _asks("DELETE", _API)),
    Row("shorten by policy", _policy({"max-length": 10}), then=_is_short),
    Row("shorten, dead letters", _policy({"max-length": 10}), _DEAD, then=_is_short),
    Row("expire", _nothing, {"x-message-ttl": int(_SOON * 1000)}, then=_none("ready")),
    Row(
        "expire, dead letters",
        _nothing,
        {"x-message-ttl": int(_SOON * 1000), **_DEAD},
        then=_all("dead_letter_count"),
    ),
    Row("become due", _nothing, headers={"x-delay": int(_SOON * 1000)}, then=_none("deferred")),
    Row("expire a long queue", _nothing, {"x-expires": int(_SOON * 1000)}, then=_none("ready")),
    Row("ack all", _nothing, unacked=True, then=_none("in_flight")),
    Row("requeue all", _nothing, unacked=True, then=_all("ready")),
    Row("reject all", _nothing, unacked=True, then=_none("in_flight")),
    Row("reject all, dead letters", _nothing, _DEAD, unacked=True, then=_all("dead_letter_count")),
    Row("commit publishes", _nothing, then=_all("message_count", of=2)),
    Row("commit acks", _nothing, unacked=True, then=_none("in_flight")),
    Row("recover", _nothing, unacked=True, then=_all("ready")),
    Row("close the channel", _nothing, unacked=True, then=_all("ready")),
    Row("close the connection", _nothing, unacked=True, then=_all("ready")),
    Row("lose the connection", _nothing, unacked=True, then=_all("ready")),
]


async def _settle(name: str, queue: str, connection: Any, channel: Any, last: int) -> None:
    """What the consumer does of rows where nobody else does anything."""
    if name.startswith("ack all"):
        await channel.basic_ack(last, multiple=True)
    elif name.startswith("requeue all"):
        await channel.basic_nack(last, multiple=True, requeue=True)
    elif name.startswith("reject all"):
        await channel.basic_nack(last, multiple=True, requeue=False)
    elif name == "commit publishes":
        await channel.tx_select()
        for _ in range(last):
            await channel.basic_publish(_BODY, routing_key=queue, properties=_PERSISTENT)
        await channel.tx_commit()
    elif name == "commit acks":
        await channel.tx_select()
        await channel.basic_ack(last, multiple=True)
        await channel.tx_commit()
    elif name == "recover":
        await channel.basic_cancel("c")
        await channel.basic_recover(requeue=True)
    elif name == "close the channel":
        await channel.close()
    elif name == "close the connection":
        await connection.close()
    elif name == "lose the connection":
        print("acted", flush=True)
        os._exit(0)  # the system closes its socket


async def consume(url: str, queue: str, count: int, name: str) -> None:
    """Have a whole queue unacked, then act, then close, each when a line comes: the child process
    that is the client of a row."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=False)
    tags: list[int] = []
    full = asyncio.Event()

    async def take(message: Any) -> None:
        tags.append(message.delivery.delivery_tag)
        if len(tags) == count:
            full.set()

    if name != "commit publishes":
        await channel.basic_consume(queue, take, consumer_tag="c")
        await full.wait()
    if name in ("requeue all", "close the channel"):
        await channel.basic_cancel("c")
    print("full", flush=True)
    if await lines.readline() == b"act\n":
        await _settle(name, queue, connection, channel, tags[-1] if tags else count)
        print("acted", flush=True)
        await lines.readline()
    os._exit(0)  # what is still open is closed by the system


@asynccontextmanager
async def _consuming(place: Place, row: Row) -> AsyncIterator[asyncio.subprocess.Process | None]:
    if not row.unacked and row.name != "commit publishes":
        yield None
        return
    options = ("--consume", place.url, place.queue, str(place.count), row.name)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.broker_holds", *options, stdin=PIPE, stdout=PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"full\n"
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.write(b"end\n")
        await child.wait()


async def _act(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"act\n")
    assert await child.stdout.readline() == b"acted\n"


async def _fill(place: Place, row: Row) -> None:
    link = await NetworkConnector(place.url, vhost="/").connect(timeout=10)
    channel = await link.open_channel(confirm=True)
    for first in range(0, place.count, _BATCH):
        properties = Properties(headers=row.headers, delivery_mode=2)
        numbers = range(first, min(first + _BATCH, place.count))
        await channel.publish([Outgoing("", place.queue, _BODY, properties) for _ in numbers])
    await channel.close()
    await link.close()


async def _measure(row: Row, place: Place) -> str:
    """What is to be printed of it."""
    for queue, arguments in (("dead", {}), (place.queue, row.arguments)):
        body = {"durable": True, "arguments": arguments}
        await _asks("PUT", f"/api/queues/%2F/{queue}", body)(place)
    await _fill(place, row)
    async with _consuming(place, row) as child:
        gc.collect()
        await place.node.drain()
        place.holds.forget()
        began = time.perf_counter()
        if child is not None and row.act is _nothing:
            await _act(child)
        await row.act(place)
        while not row.then(place):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await place.node.drain()
        took = time.perf_counter() - began
        row_told, mark = place.holds.row(), place.holds.mark()
    for queue in ("dead", place.queue):
        await _asks("DELETE", f"/api/queues/%2F/{queue}")(place)
    if row.name.startswith("shorten"):
        await _asks("DELETE", "/api/policies/%2F/short")(place)
    return f"{row_told} {took * 1000:8.0f}  {row.name}{mark}"


async def measure(on: str, count: int, only: list[str], *, why: bool) -> None:
    """Print a row for each."""
    holds = Holds(samples=why)
    with tempfile.TemporaryDirectory() as folder:
        file = None if on == "memory" else Path(folder) / "node.db"
        async with served_node(file=file) as served:
            node, api = served.node, Client(httpx.URL(served.url).port or 0)
            url = f"amqp://guest:guest@127.0.0.1:{served.amqp_port}/"
            collect_less()
            with holds.watched():
                warm = Place(node, url, api, "warm", 100, holds)
                for row in ROWS:
                    if row.name in _WARM:
                        await _measure(row, warm)
                for number, row in enumerate(ROWS):
                    if only and not row.name.startswith(tuple(only)):
                        continue
                    place = Place(node, url, api, f"q{number}", count, holds)
                    print(await _measure(row, place), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--on", choices=("memory", "file"), default="memory")
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--why", action="store_true", help="what the longest callback did")
    parser.add_argument("--consume", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        url, queue, count, name = options.consume
        asyncio.run(consume(url, queue, int(count), name))
        return
    print(facts())
    print(f"{options.messages:,} messages, {options.on}\n\n{HEADINGS} {'took ms':>8}")
    only = [name.strip() for name in options.only.split(",") if name.strip()]
    asyncio.run(measure(options.on, options.messages, only, why=options.why))


if __name__ == "__main__":
    main()
