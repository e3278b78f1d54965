"""An application with a built-in broker in a file: says ``ready``, and ends with its input.

``python -m tests.server.cli.holding_program PATH [no-control]``
"""

from __future__ import annotations

import asyncio
import sys

from broker_client import Broker


async def main() -> None:
    path, *more = sys.argv[1:]
    config = {
        "node": {"control": not more},
        "vhosts": {
            "/": {
                "connection": f"embedded://{path}",
                "queues": {
                    "q": {},
                    "other": {},
                },
            }
        },
    }
    async with Broker.create(config):
        print("ready", flush=True)  # noqa: T201 - a program's output
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
