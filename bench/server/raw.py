"""A client on a bare socket, with its frames prepared in advance: the broker is what is measured.

    python -m bench.server.raw publish amqp://guest:guest@127.0.0.1:5672/ 100000

It prints one line of JSON. ``publish`` and ``consume`` give seconds, ``latency`` gives percentiles
in seconds, ``crowd`` gives seconds for many connections, ``idle`` holds connections until its
standard input ends.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from pamqp import commands
from pamqp.base import Frame

from broker_client.message import Properties
from tests.support.wire import PROTOCOL_HEADER, frames_in, method, publish, tune_ok

QUEUE = "bench.server"
BODY_SIZE = 256  # bytes
WINDOW = 2_000  # most publishes without a confirm
BATCH = 100  # publishes in one write
PREFETCH = 2_000
_ACK = struct.Struct(">BHIHHQBB")
_PERSISTENT = Properties(delivery_mode=2)


class RawClient:
    """One connection with one channel, and one durable queue declared."""

    def __init__(self, url: str, *, heartbeat: int = 0, queue: str = QUEUE) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 5672), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect("Connection.Start")
        self.socket.sendall(method(commands.Connection.StartOk({}, "PLAIN", login, "en_US")))
        self.expect("Connection.Tune")
        vhost = unquote(parts.path[1:]) or "/"
        self.socket.sendall(
            tune_ok(heartbeat=heartbeat)
            + method(commands.Connection.Open(vhost))
            + method(commands.Channel.Open(), 1)
        )
        self.expect("Channel.OpenOk")
        if queue:
            self.call(commands.Queue.Declare(queue=queue, durable=True), "Queue.DeclareOk")

    def call(self, value: Frame, answer: str) -> Any:
        """Send a method on the channel, and wait for the answer of this name."""
        self.socket.sendall(method(value, 1))
        return self.expect(answer)

    def expect(self, name: str) -> Any:
        """The next frame of this name; frames before it are dropped."""
        while True:
            size = 8 + int.from_bytes(self.rest[3:7], "big")
            if len(self.rest) < max(8, size):
                self.rest += self.receive()
                continue
            ((_, frame),) = frames_in(self.rest[:size])
            self.rest = self.rest[size:]
            if frame.name == name:
                return frame
            if frame.name.endswith(".Close"):
                raise ConnectionError(f"{frame.reply_code} {frame.reply_text}")

    def receive(self) -> bytes:
        data = self.socket.recv(2**18)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        return data

    def close(self) -> None:
        """Close in order: the broker has handled all that was sent before."""
        self.socket.sendall(method(commands.Connection.Close(200, "", 0, 0)))
        self.expect("Connection.CloseOk")
        self.socket.close()


class Confirms:
    """Counts the publishes that are confirmed, singly or in ranges, in any order."""

    def __init__(self) -> None:
        self._all_up_to = 0
        self._beyond: set[int] = set()
        self._rest = b""

    @property
    def count(self) -> int:
        return self._all_up_to + len(self._beyond)

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % _ACK.size
        self._rest = data[whole:]
        for _, _, _, _, method_id, tag, multiple, _ in _ACK.iter_unpack(data[:whole]):
            assert method_id == 80, "not confirmed"
            self.confirmed(tag, multiple)

    def confirmed(self, tag: int, multiple: bool) -> None:
        if multiple:
            self._all_up_to = max(tag, self._all_up_to)
            if self._beyond:
                self._beyond = {each for each in self._beyond if each > tag}
        elif tag == self._all_up_to + 1:
            self._all_up_to = tag
        else:
            self._beyond.add(tag)


def a_publish(body: bytes = b"x" * BODY_SIZE) -> bytes:
    return publish(body, _PERSISTENT, routing_key=QUEUE)


def measure_publish(url: str, count: int, size: int = BODY_SIZE) -> dict[str, float]:
    """From the first publish to the last confirm."""
    client = RawClient(url)
    client.call(commands.Confirm.Select(), "Confirm.SelectOk")
    one = a_publish(b"x" * size)
    batch = one * BATCH
    confirms, sent = Confirms(), 0
    start = time.perf_counter()
    while confirms.count < count:
        while sent < count and sent - confirms.count <= WINDOW - BATCH:
            now = min(BATCH, count - sent)
            client.socket.sendall(batch if now == BATCH else one * now)
            sent += now
        confirms.feed(client.receive())
    seconds = time.perf_counter() - start
    client.close()
    return {"seconds": seconds}


def measure_consume(url: str, count: int) -> dict[str, float]:
    """From basic.consume to the last ack, each message acked by itself."""
    client = RawClient(url)
    client.call(commands.Basic.Qos(prefetch_count=PREFETCH), "Basic.QosOk")
    acks = b"".join(_ACK.pack(1, 1, 13, 60, 80, tag + 1, 0, 206) for tag in range(count))
    start = time.perf_counter()
    client.call(commands.Basic.Consume(queue=QUEUE, consumer_tag="c"), "Basic.ConsumeOk")
    arrived, acked, size = client.rest, 0, 0
    pending = len(arrived)
    while acked < count:
        if not size:
            size = _size_of_delivery(arrived)
        if size and (whole := pending // size):
            client.socket.sendall(acks[acked * _ACK.size : (acked + whole) * _ACK.size])
            acked += whole
            pending -= whole * size
            continue
        data = client.receive()
        pending += len(data)
        if not size:
            arrived += data
    client.rest = b""
    client.close()
    return {"seconds": time.perf_counter() - start}


def _size_of_delivery(data: bytes) -> int:
    """Size in bytes of the first delivery: method, content header and one body frame; 0 while it is
    incomplete."""
    at = 0
    for _ in range(3):
        if len(data) < at + 8:
            return 0
        at += 8 + int.from_bytes(data[at + 3 : at + 7], "big")
    return at if len(data) >= at else 0


def measure_latency(url: str, seconds: float, rate: int = 1_000) -> dict[str, float]:
    """From publish to delivery at a steady rate, one publisher and one consumer that acks."""
    publisher, consumer = RawClient(url), RawClient(url)
    consumer.call(commands.Basic.Qos(prefetch_count=PREFETCH), "Basic.QosOk")
    consumer.call(commands.Basic.Consume(queue=QUEUE, consumer_tag="c"), "Basic.ConsumeOk")
    publisher.call(commands.Confirm.Select(), "Confirm.SelectOk")
    count = int(seconds * rate)
    latencies: list[float] = []

    def consume() -> None:
        data, size = consumer.rest, 0
        while len(latencies) < count:
            data += consumer.receive()
            now = time.perf_counter_ns()
            size = size or _size_of_delivery(data)
            acks = []
            while size and len(data) >= size:
                (sent,) = struct.unpack_from(">Q", data, size - BODY_SIZE - 1)
                latencies.append((now - sent) / 1e9)
                data = data[size:]
                acks.append(_ACK.pack(1, 1, 13, 60, 80, len(latencies), 0, 206))
            consumer.socket.sendall(b"".join(acks))

    def drop_confirms() -> None:
        confirms = Confirms()
        while confirms.count < count:
            confirms.feed(publisher.receive())

    threads = [threading.Thread(target=each) for each in (consume, drop_confirms)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for number in range(count):
        wait = start + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        body = struct.pack(">Q", time.perf_counter_ns()).ljust(BODY_SIZE, b"x")
        publisher.socket.sendall(a_publish(body))
    for thread in threads:
        thread.join()
    publisher.close()
    consumer.close()
    ordered = sorted(latencies[rate // 2 :])  # without the first half second
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[len(ordered) * 99 // 100],
        "max": ordered[-1],
    }


def measure_crowd(url: str, connections: int, count: int) -> dict[str, float]:
    """`connections` publish `count` messages in all, and as many others consume and ack them."""
    publishers = [RawClient(url) for _ in range(connections)]
    consumers = [RawClient(url) for _ in range(connections)]
    one, each = a_publish(), count // connections
    selector = selectors.DefaultSelector()
    for client in publishers:
        client.call(commands.Confirm.Select(), "Confirm.SelectOk")
    start = time.perf_counter()
    handlers: dict[RawClient, Callable[[], int]] = {}
    for client in consumers:
        client.call(commands.Basic.Qos(prefetch_count=100), "Basic.QosOk")
        client.call(commands.Basic.Consume(queue=QUEUE, consumer_tag="c"), "Basic.ConsumeOk")
        handlers[client] = _acker(client)
    for client in publishers:
        handlers[client] = _publisher(client, one, each)
        handlers[client]()
    for client in (*publishers, *consumers):
        selector.register(client.socket, selectors.EVENT_READ, client)
    left = 2 * each * connections
    for client in consumers:
        left -= handlers[client]() if client.rest else 0
    while left > 0:
        for key, _ in selector.select(60):
            client = key.data
            client.rest += client.receive()
            left -= handlers[client]()
    seconds = time.perf_counter() - start
    selector.close()
    for client in (*publishers, *consumers):
        client.rest = b""
        client.close()
    return {"seconds": seconds}


def _acker(client: RawClient) -> Callable[[], int]:
    size = acked = 0

    def handle() -> int:
        nonlocal size, acked
        size = size or _size_of_delivery(client.rest)
        whole = len(client.rest) // size if size else 0
        if whole:
            tags = range(acked + 1, acked + whole + 1)
            data = b"".join([_ACK.pack(1, 1, 13, 60, 80, tag, 0, 206) for tag in tags])
            client.socket.sendall(data)
            client.rest = client.rest[whole * size :]
            acked += whole
        return whole

    return handle


def _publisher(client: RawClient, one: bytes, count: int) -> Callable[[], int]:
    confirms, sent = Confirms(), 0

    def handle() -> int:
        nonlocal sent
        before = confirms.count
        confirms.feed(client.rest)
        client.rest = b""
        now = min(count - sent, 100 - (sent - confirms.count))
        if now > 0:
            client.socket.sendall(one * now)
            sent += now
        return confirms.count - before

    return handle


def hold_idle(url: str, connections: int) -> dict[str, float]:
    """Hold connections with heartbeats asked for, until the standard input ends."""
    held = [RawClient(url, heartbeat=60, queue="") for _ in range(connections)]
    print(json.dumps({"connections": len(held)}), flush=True)
    sys.stdin.read()
    for client in held:
        client.socket.close()
    return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["publish", "consume", "latency", "crowd", "idle"])
    parser.add_argument("url")
    parser.add_argument("count", type=int, help="messages, seconds, or connections")
    parser.add_argument("--size", type=int, default=BODY_SIZE, help="bytes of a body")
    parser.add_argument("--messages", type=int, default=100_000, help="of a crowd")
    options = parser.parse_args()
    if options.what == "publish":
        result = measure_publish(options.url, options.count, options.size)
    elif options.what == "consume":
        result = measure_consume(options.url, options.count)
    elif options.what == "latency":
        result = measure_latency(options.url, options.count)
    elif options.what == "crowd":
        result = measure_crowd(options.url, options.count, options.messages)
    else:
        result = hold_idle(options.url, options.count)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
