"""What a new process pays: for the import, and from `Broker.create` to its first message.

    python -m bench.starting                     # twelve processes of each; half a minute
    python -m bench.starting --rounds 3

Processor time in milliseconds, each in a process of its own, in turns, with compiled bytecode. The
import stands beside that of aio-pika. The first message goes through the built-in broker in memory:
a Broker is made of a mapping with one queue, publication and subscription, then one message is
published and handled. The parts are those of a `Broker.create` that is taken apart: the models of
the configuration are built, and the broker is imported. The command is a whole process.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

import broker_client

_OURS = """
import time
begun = time.process_time()
import broker_client
from broker_client import Broker
imported = time.process_time()
"""
_AIO_PIKA = """
import time
begun = time.process_time()
import aio_pika
print('{"import aio_pika": %f}' % (time.process_time() - begun))
"""
_FIRST_MESSAGE = """
import asyncio, json, logging
logging.disable(logging.WARNING)
CONFIG = {"vhosts": {"/": {
    "queues": ["q"],
    "publications": {"p": {"queue": "q"}},
    "subscriptions": {"s": {"queue": "q"}},
}}}

async def first_message():
    handled = asyncio.Event()

    async def handle(message, content, ack_or_nack):
        await ack_or_nack()
        handled.set()

    begun = time.process_time()
    async with broker_client.Broker.create(CONFIG) as broker:
        await broker.subscribe("s", handle)
        await broker.publish("p", b"x")
        await handled.wait()
        return time.process_time() - begun
"""
_COLD = f"""{_OURS}{_FIRST_MESSAGE}
cold = asyncio.run(first_message())
again = asyncio.run(first_message())
print(json.dumps({{
    "from broker_client import Broker": imported - begun,
    "Broker.create to the first message": cold,
    "the same again in that process": again,
}}))
"""
_PARTS = f"""{_OURS}{_FIRST_MESSAGE}
begun = time.process_time()
broker_client.load_config(CONFIG)
models = time.process_time()
import broker_client.transport.embedded.link
print(json.dumps({{
    "  of that: models of the configuration": models - begun,
    "  of that: import of the broker": time.process_time() - models,
}}))
"""


def measured(program: str) -> dict[str, float]:
    """What `program` prints, run by an interpreter of its own that may keep bytecode."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def of_command(option: str) -> float:
    """Seconds of processor time that ``broker-client`` takes with `option`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "broker_client", option]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.starting", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    options = parser.parse_args()
    compileall.compile_dir(Path(broker_client.__file__).parent, quiet=1)
    taken: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for program in (_AIO_PIKA, _COLD, _PARTS):
            for name, seconds in measured(program).items():
                taken.setdefault(name, []).append(seconds * 1_000)
        for option in ("--version", "--help"):
            taken.setdefault(f"broker-client {option}", []).append(of_command(option) * 1_000)
    print("| ms of the processor | median | lowest to highest |\n|---|--:|--:|")
    for name, each in taken.items():
        print(f"| {name} | {median(each):.0f} | {min(each):.0f} to {max(each):.0f} |")
    ratio = median(taken["from broker_client import Broker"]) / median(taken["import aio_pika"])
    print(f"\nthe import takes {ratio:.2f} times as long as that of aio-pika")
    return 0


if __name__ == "__main__":
    sys.exit(main())
