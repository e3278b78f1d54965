"""The network between the nodes of a cluster, which a test can interrupt.

Erlang nodes find each other by a name server (epmd), which says at which port a node listens. Here
each node has a name server of its own, in one process of ours. Asked for another node, it answers
with the port of a proxy that leads there, so that all traffic between two nodes goes through one.

The protocol: https://www.erlang.org/doc/apps/erts/erl_dist_protocol.html
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import subprocess
import sys
from typing import Any

from tests.support.proxy import Proxy

_ALIVE2_REQ, _ALIVE2_X_RESP = 120, 118
_PORT_PLEASE2_REQ, _PORT2_RESP = 122, 119
_NAMES_REQ = 110
_ERLANG_NODE, _TCP, _HIGHEST, _LOWEST = 77, 0, 6, 5
_PATIENCE = 30.0  # seconds


class Partitions:
    """Name servers for so many nodes, and the ways between them, in a process of its own.

    All methods block.
    """

    def __init__(self, nodes: int) -> None:
        command = [sys.executable, "-m", "tests.support.partitions", str(nodes)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ports: list[int] = self._answer()
        """Of the name servers."""

    def isolate(self, node: int) -> None:
        """Let nothing pass between that node and the others, in either direction, silently."""
        self._ask("isolate", node)

    def join(self, node: int) -> None:
        """Let it pass again: what was sent meanwhile arrives late."""
        self._ask("join", node)

    @property
    def connections(self) -> int:
        """Connections between two nodes that are open now."""
        return int(self._ask("count", 0))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE)
        self._process.stdout.close()

    def _ask(self, what: str, node: int) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, node]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class _Network:
    """What runs in the process."""

    def __init__(self, nodes: int) -> None:
        self._registered: list[dict[str, int]] = [{} for _ in range(nodes)]
        """Of each node: names that run beside it, and their ports."""
        self._ways: dict[tuple[int, int], Proxy] = {}
        self._clients: set[asyncio.Task[Any]] = set()
        self._creation = 1
        self.ports: list[int] = []

    def do(self, what: str, node: int) -> Any:
        for ends, proxy in self._ways.items():
            if node in ends and what == "isolate":
                proxy.stall()
            elif node in ends and what == "join":
                proxy.resume()
        return sum(proxy.connections for proxy in self._ways.values())

    # ---------------------------------------------------------------- name servers

    async def listen(self, stack: contextlib.AsyncExitStack) -> None:
        nodes = range(len(self._registered))
        for one in nodes:
            for other in nodes:
                if one != other:
                    proxy = Proxy("127.0.0.1", 0)
                    self._ways[one, other] = await stack.enter_async_context(proxy)
        for node in nodes:
            server = await asyncio.start_server(self._for_node(node), "127.0.0.1", 0)
            stack.callback(server.close)
            self.ports.append(server.sockets[0].getsockname()[1])

    def _for_node(self, node: int) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await self._answer(node, reader, writer)
            finally:
                writer.close()

        return serve

    async def _answer(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        [size] = struct.unpack("!H", await reader.readexactly(2))
        request = await reader.readexactly(size)
        if request[0] == _ALIVE2_REQ:
            [port] = struct.unpack_from("!H", request, 1)
            [length] = struct.unpack_from("!H", request, 9)
            name = request[11 : 11 + length].decode()
            await self._register(node, name, port, reader, writer)
        elif request[0] == _PORT_PLEASE2_REQ:
            name = request[1:].decode()
            writer.write(_port_answer(name, self._port(node, name)))
        elif request[0] == _NAMES_REQ:
            names = [
                f"name {name} at port {port}\n" for name, port in self._registered[node].items()
            ]
            writer.write(struct.pack("!I", self.ports[node]) + "".join(names).encode())

    async def _register(
        self,
        node: int,
        name: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """A node is registered as long as it keeps the connection."""
        self._creation += 1
        self._registered[node][name] = port
        writer.write(struct.pack("!BBI", _ALIVE2_X_RESP, 0, self._creation))
        try:
            await reader.read()
        finally:
            if self._registered[node].get(name) == port:
                del self._registered[node][name]

    def _port(self, asking: int, name: str) -> int | None:
        """Where `name` is to be reached from the node that asks: beside it, or by a proxy."""
        if name in self._registered[asking]:
            return self._registered[asking][name]
        for other, names in enumerate(self._registered):
            if name in names:
                way = self._ways[asking, other]
                way.lead_to(names[name])
                return way.port
        return None


def _port_answer(name: str, port: int | None) -> bytes:
    if port is None:
        return bytes((_PORT2_RESP, 1))
    encoded = name.encode()
    head = struct.pack(
        "!BBHBBHHH", _PORT2_RESP, 0, port, _ERLANG_NODE, _TCP, _HIGHEST, _LOWEST, len(encoded)
    )
    return head + encoded + struct.pack("!H", 0)


async def _run(nodes: int) -> None:
    """Answer the questions on the standard input until it ends."""
    async with contextlib.AsyncExitStack() as stack:
        network = _Network(nodes)
        await network.listen(stack)
        _say(network.ports)
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(network.do(*json.loads(line)))


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - read by `Partitions`


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1])))
