"""An application with a built-in broker in a file: prints ``ready``, and ends when its input is
closed.

``python -m tests.server.cli.holding_program PATH [no-control | bound | fork | fork-and-exit]``:
the forked child lives for 15 seconds, or ends at once as a program does.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import time

from broker_client import Broker


def _fork(more: list[str]) -> None:
    if "fork" in more and os.fork() == 0:
        for standard in (0, 1):  # its end shows that the parent's copy is closed
            os.close(standard)
        time.sleep(15)
        os._exit(0)
    if "fork-and-exit" in more:
        child = os.fork()
        if child == 0:
            atexit._run_exitfuncs()  # noqa: SLF001 - the part of sys.exit that could remove files
            os._exit(0)
        os.waitpid(child, 0)


async def main() -> None:
    path, *more = sys.argv[1:]
    config = {
        "node": {"control": "no-control" not in more},
        "vhosts": {
            "/": {
                "connection": f"embedded://{path}",
                "exchanges": ["orders"],
                "queues": {
                    "q": {},
                    "other": {},
                },
                "bindings": ["orders[order.#] -> q"] if "bound" in more else [],
            }
        },
    }
    async with Broker.create(config):
        _fork(more)
        print("ready", flush=True)  # noqa: T201 - a program's output
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
