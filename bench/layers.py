"""Where a message's processor time goes on RabbitMQ: one layer of the client more on each step.

    python -m bench.layers                       # a RabbitMQ of its own; about two minutes
    python -m bench.layers --url amqp://guest:guest@127.0.0.1:5672/ --rounds 9

The same persistent messages are published with confirms, then consumed and acked, each time in a
process of its own, in turns:

- `socket`: a blocking socket, frames prepared in advance, one ack for all that a read brought
- `asyncio`: the same on a transport of asyncio
- `frames`: publishes are encoded, what arrives is split into frames and decoded
- `transport`: a channel of the client, without the rest of it; each message is acked
- `Broker`: the publish queue with an outcome for each message; a consumer, a handler and its task
- `no collector`: the same without Python's collector of garbage

Microseconds of processor a message, by the median; `system` is the kernel's part. Wall time does
not count, so the time that RabbitMQ takes is in none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from statistics import median
from typing import Any, NamedTuple

from pamqp import commands

from bench.peers.load import BODY, PREFETCH, QUEUE, WINDOW, Countdown
from bench.peers.ours import config
from bench.server.raw import Confirms, RawClient
from broker_client.ackornack import AckOrNack
from broker_client.amqp.encode import ack_frame, publish_frames
from broker_client.broker import Broker
from broker_client.message import (
    PERSISTENT,
    Delivery,
    Message,
    Outgoing,
    Properties,
    Returned,
)
from broker_client.publishing.message_ids import new_message_id
from broker_client.transport.base import Channel, ConsumerCallbacks
from broker_client.transport.rabbitmq.connector import NetworkConnector
from broker_client.transport.rabbitmq.reader import FrameReader
from tests.support.rabbitmq import RabbitMQ

BATCH = 200
FRAME_MAX = 131_072
Work = Callable[[], Awaitable[None]]


class Spent(NamedTuple):
    """Seconds of processor time."""

    user: float
    system: float


async def spent(work: Work) -> Spent:
    """What `work` takes."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    await work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Spent(after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)


def a_message() -> Outgoing:
    """As `Broker.publish` makes it of `BODY`."""
    properties = Properties(
        content_type="application/octet-stream",
        delivery_mode=PERSISTENT,
        message_id=new_message_id(),
    )
    return Outgoing("", QUEUE, BODY, properties, mandatory=True)


def publisher(url: str) -> RawClient:
    client = RawClient(url, queue=QUEUE)
    client.call(commands.Confirm.Select(), "Confirm.SelectOk")
    return client


def consumer(url: str) -> RawClient:
    client = RawClient(url, queue=QUEUE)
    client.call(commands.Basic.Qos(prefetch_count=PREFETCH), "Basic.QosOk")
    return client


def consume(client: RawClient) -> bytes:
    """Begin; returns what has arrived already."""
    client.call(commands.Basic.Consume(queue=QUEUE, consumer_tag="c"), "Basic.ConsumeOk")
    arrived, client.rest = client.rest, b""
    return arrived


class Sending:
    """Sends `count` publishes, so many at a time that no more than the window are unconfirmed."""

    def __init__(self, count: int, send: Callable[[int], object]) -> None:
        self._count, self._send, self._sent = count, send, 0

    def go_on(self, confirmed: int) -> bool:
        """Send what there is room for; False once everything is confirmed."""
        while self._sent < self._count and self._sent - confirmed <= WINDOW - BATCH:
            now = min(BATCH, self._count - self._sent)
            self._send(now)
            self._sent += now
        return confirmed < self._count


class Counting:
    """Counts deliveries of one size in a stream of bytes."""

    def __init__(self) -> None:
        self._size = self._pending = 0
        self.whole = 0

    def feed(self, data: bytes) -> int:
        """The tag of the last whole delivery that `data` ends; 0 if it ends none."""
        if not self._size:  # three frames
            for _ in range(3):
                self._size += 8 + int.from_bytes(data[self._size + 3 : self._size + 7])
        self._pending += len(data)
        new, self._pending = divmod(self._pending, self._size)
        self.whole += new
        return self.whole if new else 0


# --------------------------------------------------------------------------- the steps


async def on_socket(url: str, count: int) -> tuple[Spent, Spent]:
    one = publish_frames(1, a_message(), FRAME_MAX)
    client = publisher(url)

    async def publish() -> None:
        confirms = Confirms()
        sending = Sending(count, lambda number: client.socket.sendall(one * number))
        while sending.go_on(confirms.count):
            confirms.feed(client.receive())

    async def take() -> None:
        counting, arrived = Counting(), consume(receiver)
        while counting.whole < count:
            if last := counting.feed(arrived or receiver.receive()):
                receiver.socket.sendall(ack_frame(1, last, multiple=True))
            arrived = b""

    published = await spent(publish)
    receiver = consumer(url)
    taken = await spent(take)
    client.close()
    receiver.close()
    return published, taken


class Heard(asyncio.Protocol):
    """Passes on what arrives."""

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        self._heard = heard
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._heard(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def on_loop(client: RawClient, heard: Callable[[bytes], None]) -> asyncio.Transport:
    client.socket.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: Heard(heard), sock=client.socket)
    return transport


async def ended(transport: asyncio.Transport) -> None:
    """Close it once the last ack is written."""
    transport.close()
    protocol = transport.get_protocol()
    assert isinstance(protocol, Heard), "see `on_loop`"
    await protocol.ended.wait()


async def on_asyncio(url: str, count: int) -> tuple[Spent, Spent]:
    one, done = publish_frames(1, a_message(), FRAME_MAX), asyncio.Event()
    confirms, counting = Confirms(), Counting()

    def confirmed(data: bytes) -> None:
        confirms.feed(data)
        if not sending.go_on(confirms.count):
            done.set()

    def arrived(data: bytes) -> None:
        if last := counting.feed(data):
            to.write(ack_frame(1, last, multiple=True))
        if counting.whole == count:
            done.set()

    async def publish() -> None:
        sending.go_on(0)
        await done.wait()

    async def take() -> None:
        if first:
            arrived(first)
        await done.wait()

    to = await on_loop(publisher(url), confirmed)
    sending = Sending(count, lambda number: to.write(one * number))
    published = await spent(publish)
    to.close()
    done.clear()
    receiver = consumer(url)
    first = consume(receiver)
    to = await on_loop(receiver, arrived)
    taken = await spent(take)
    await ended(to)
    return published, taken


class Channel1:
    """What a `FrameReader` tells of its channel: counts confirms and deliveries."""

    def __init__(self) -> None:
        self.confirms = Confirms()
        self.delivered_tag = 0

    def confirmed(self, seq: int, multiple: bool, acked: bool) -> None:
        self.confirms.confirmed(seq, multiple)

    def delivered(self, delivery: Delivery) -> None:
        self.delivered_tag = delivery.delivery_tag

    def got(self, delivery: Delivery | None) -> None: ...
    def message_returned(self, message: Returned) -> None: ...
    def consumer_cancelled(self, consumer_tag: str) -> None: ...
    def closed_by_broker(self, reply_code: int, reply_text: str) -> None: ...


class Link1:
    """What a `FrameReader` tells of its link: nothing happens to it here."""

    def blocked(self, reason: str) -> None: ...
    def unblocked(self) -> None: ...
    def secret_updated(self) -> None: ...
    def closing_by_broker(self, reply_code: int, reply_text: str) -> None: ...
    def socket_lost(self, error: BaseException | None) -> None: ...


async def with_frames(url: str, count: int) -> tuple[Spent, Spent]:
    messages, done = [a_message() for _ in range(count)], asyncio.Event()
    channel, reader = Channel1(), FrameReader(Link1())
    reader.attach(1, channel)
    unsent = iter(messages)

    def send(number: int) -> None:
        to.write(b"".join([publish_frames(1, next(unsent), FRAME_MAX) for _ in range(number)]))

    def confirmed(data: bytes) -> None:
        reader.feed_data(data)
        if not sending.go_on(channel.confirms.count):
            done.set()

    def arrived(data: bytes) -> None:
        before = channel.delivered_tag
        reader.feed_data(data)
        if channel.delivered_tag > before:
            to.write(ack_frame(1, channel.delivered_tag, multiple=True))
        if channel.delivered_tag == count:
            done.set()

    async def publish() -> None:
        sending.go_on(0)
        await done.wait()

    async def take() -> None:
        if first:
            arrived(first)
        await done.wait()

    to = await on_loop(publisher(url), confirmed)
    sending = Sending(count, send)
    published = await spent(publish)
    to.close()
    done.clear()
    reader = FrameReader(Link1())
    reader.attach(1, channel)
    receiver = consumer(url)
    first = consume(receiver)
    to = await on_loop(receiver, arrived)
    taken = await spent(take)
    await ended(to)
    return published, taken


async def with_transport(url: str, count: int) -> tuple[Spent, Spent]:
    messages = [a_message() for _ in range(count)]
    vhost = url.rsplit("/", 1)[1].replace("%2F", "/") or "/"
    link = await NetworkConnector(url, vhost=vhost).connect(timeout=10)
    channel: Channel = await link.open_channel(confirm=True)
    confirms, changed = Confirms(), asyncio.Event()

    def on_confirm(first: int, last: int, acked: bool) -> None:
        for tag in range(first, last + 1):
            confirms.confirmed(tag, multiple=False)
        changed.set()

    async def publish() -> None:
        sent = 0
        while confirms.count < count:
            if sent < count and sent - confirms.count <= WINDOW - BATCH:
                await channel.publish(messages[sent : sent + BATCH])
                sent += BATCH
            else:
                changed.clear()
                await changed.wait()

    async def take() -> None:
        countdown = Countdown(count)

        def on_delivery(delivery: Delivery) -> None:
            channel.ack(delivery.delivery_tag)
            countdown.one()

        await channel.qos(PREFETCH)
        nothing = ConsumerCallbacks(on_delivery, lambda tag: None, lambda tag: None)
        await channel.consume(QUEUE, nothing)
        await countdown.wait()

    channel.on_confirm = on_confirm
    published, taken = await spent(publish), await spent(take)
    await channel.close()
    await link.close()
    return published, taken


async def with_broker(url: str, count: int) -> tuple[Spent, Spent]:
    countdown = Countdown(count)

    async def publish() -> None:
        for publication in [await broker.publish("bench", BODY) for _ in range(count)]:
            await publication

    async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        countdown.one()

    async def take() -> None:
        await broker.subscribe("bench", handle)
        await countdown.wait()

    async with Broker.create(config(url)) as broker:
        return await spent(publish), await spent(take)


async def without_collector(url: str, count: int) -> tuple[Spent, Spent]:
    gc.disable()
    return await with_broker(url, count)


STEPS: dict[str, Callable[[str, int], Awaitable[tuple[Spent, Spent]]]] = {
    "socket": on_socket,
    "asyncio": on_asyncio,
    "frames": with_frames,
    "transport": with_transport,
    "Broker": with_broker,
    "no collector": without_collector,
}


# --------------------------------------------------------------------------- the table


def in_a_process(step: str, url: str, count: int) -> list[float]:
    """Microseconds a message: publishing, of that the kernel's, consuming, of that the kernel's."""
    command = [sys.executable, "-m", "bench.layers", "--step", step, "--url", url]
    done = subprocess.run(
        [*command, "--messages", str(count)], capture_output=True, text=True, check=True
    )
    figures: list[float] = json.loads(done.stdout)
    return figures


async def one_step(step: str, url: str, count: int) -> list[float]:
    published, taken = await STEPS[step](url, count)
    return [
        each / count * 1e6
        for part in (published, taken)
        for each in (part.user + part.system, part.system)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.layers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="in each run")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--url", help="a running broker and its vhost")
    parser.add_argument("--step", choices=STEPS, help="only this one, here, as JSON")
    options = parser.parse_args()
    count = options.messages // BATCH * BATCH
    if options.step:
        logging.disable(logging.WARNING)
        print(json.dumps(asyncio.run(one_step(options.step, options.url, count))))
        return 0
    taken: dict[str, list[list[float]]] = {step: [] for step in STEPS}
    server: Any = nullcontext() if options.url else RabbitMQ(stats_interval=60.0)
    with server:
        url = options.url or server.url()
        for _ in range(options.rounds):
            for step in STEPS:
                taken[step].append(in_a_process(step, url, count))
    print("| µs a message | publish | system | consume | system | both | lowest to highest |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for step, rounds in taken.items():
        medians = [median(column) for column in zip(*rounds, strict=True)]
        both = [each[0] + each[2] for each in rounds]
        cells = " | ".join(f"{each:.1f}" for each in (*medians, median(both)))
        print(f"| {step} | {cells} | {min(both):.1f} to {max(both):.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
