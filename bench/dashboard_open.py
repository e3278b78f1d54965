"""Measures the load of an open dashboard: the broker's rate and processor time with and without.

    python -m bench.dashboard_open                              # 1,000 queues; some minutes
    python -m bench.dashboard_open --messages 20000 --rounds 3  # a quick look

``broker-client serve`` runs in a process of its own, and so do the client, which publishes with
confirms and then consumes with acks, and the viewer, which is logged in, reads the dashboard's
event stream and requests the overview's data at each sample. Rounds with it and without take turns,
each pair in the other order; a row is one of the two steps, and its ratios are of the medians.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from bench.dashboard_holds import Client, Request
from bench.machine import facts
from bench.server.__main__ import raw
from bench.server.brokers import ROOT, RunningBroker, ours

_AT_EACH_SAMPLE = ("overview", "history?range=fine")


@contextmanager
def looking(port: int) -> Iterator[None]:
    """A viewer process that runs as long as the block."""
    command = [sys.executable, "-m", "bench.dashboard_open", "--look", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looking\n"
        try:
            yield
        finally:
            process.terminate()


def look(port: int) -> None:
    """Request what a browser requests with the overview open, until the process is ended."""
    client = Client(port)
    client.log_in()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/ui/stream", headers=client.headers)
    events = connection.getresponse()
    print("looking", flush=True)
    while line := events.readline():
        if line.startswith(b"event:") and b"heartbeat" not in line:
            for path in _AT_EACH_SAMPLE:
                client.ask(Request("GET", f"/ui/{path}"))


def measure(
    broker: RunningBroker, messages: int, rounds: int
) -> dict[bool, list[dict[str, float]]]:
    """The figures of each round, with a dashboard open and without."""
    figures: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    raw(broker, messages)  # the first is slower
    for number in range(rounds):
        for is_open in (number % 2 == 0, number % 2 != 0):
            if is_open:
                with looking(broker.http_port):
                    figures[True].append(raw(broker, messages))
            else:
                figures[False].append(raw(broker, messages))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=6, help="of each")
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS, metavar="PORT")
    options = parser.parse_args()
    if options.look:
        look(options.look)
        return
    print(facts())
    with ours(keeps=True, uvloop=False, http=True) as broker:
        names = [f"work.{number:04}" for number in range(options.queues)]
        queues = [{"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in names]
        status, told = Client(broker.http_port).ask(
            Request("POST", "/api/definitions", {"queues": queues})
        )
        assert status < 300, json.loads(told)
        figures = measure(broker, options.messages, options.rounds)
    print(f"{options.queues:,} queues, a file; {options.rounds} rounds of {options.messages:,}\n")
    print(f"{'without':>12} {'open':>12} {'open/without':>13}")
    for name in figures[False][0]:
        without, is_open = (median(each[name] for each in figures[key]) for key in (False, True))
        print(f"{without:12,.1f} {is_open:12,.1f} {is_open / without:13.3f}  {name}")


if __name__ == "__main__":
    main()
