"""``broker-client move`` and ``replay`` on a file, and on the application that has it open."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.statistics import read_stats
from broker_client.store.writer import SqliteStore
from tests.server.cli.test_cli_where import application
from tests.support.builders import a_message
from tests.support.command_line import drained, program, run, told
from tests.support.receivers import RecordingReceiver

MANY = 600


@pytest.fixture(scope="module", params=["file", "application"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A file with the queues ``work``, which dead-letters to ``dead``, and ``other``."""
    path = tmp_path_factory.mktemp("moves") / "app.db"
    asyncio.run(_prepare(path))
    with contextlib.ExitStack() as stack:
        if request.param == "application":
            stack.enter_context(application(path))
        yield str(path)


async def _prepare(path: Path) -> None:
    node = Node("test", store=SqliteStore(str(path)))
    await node.recover()
    node.administration.add_vhost("/")
    connection = node.open_connection("/", RecordingReceiver())
    channel = node.open_channel(connection, RecordingReceiver(), confirm=True)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    node.commands.declare_queue(channel, "work", arguments=to_dead)
    node.commands.declare_queue(channel, "brief", arguments={**to_dead, "x-message-ttl": 0})
    for name in ("dead", "other", "line", "moved"):
        node.commands.declare_queue(channel, name)
    lines = [a_message("line", body=b"%d" % n, delivery_mode=PERSISTENT) for n in range(MANY)]
    node.commands.publish(channel, lines)
    for n in range(6):
        headers = {"odd": str(n % 2)}
        message = a_message("work", body=b"%d" % n, headers=headers, delivery_mode=PERSISTENT)
        node.commands.publish(channel, [message])
        got = node.commands.get(channel, "work", no_ack=False)
        assert got is not None
        node.commands.nack(channel, got[0].delivery_tag, requeue=False)
    node.commands.publish(channel, [a_message("brief", body=b"late", delivery_mode=PERSISTENT)])
    node.commands.publish(
        channel, [a_message("dead", body=b"never died", delivery_mode=PERSISTENT)]
    )
    await node.close()


def test_dead_letters_are_counted_and_put_back_by_reason_age_header_and_number(place: str) -> None:
    dry = told(run(place, "replay", "dead", "--json"))
    assert dry["seen"] == 8
    assert sorted((each["reason"], each["count"]) for each in dry["would_replay"]) == [
        ("expired", 1),
        ("rejected", 6),
    ]
    for options in (("--older-than", "3600"), ("--reason", "maxlen"), ("--header", "odd=2")):
        assert told(run(place, "replay", "dead", *options, "--yes", "--json"))["moved"] == 0
    odd = ("replay", "dead", "--reason", "rejected", "--header", "odd=1", "--yes", "--json")
    assert told(run(place, *odd))["moved"] == 3
    assert [each["body"] for each in drained(place, "work")] == ["1", "3", "5"]
    first = ("replay", "dead", "--from", "work", "--limit", "2", "--yes", "--json")
    assert told(run(place, *first))["moved"] == 2
    replayed = drained(place, "work")
    assert [each["body"] for each in replayed] == ["0", "2"]
    assert replayed[0]["properties"]["headers"] == {"odd": "0"}
    assert told(run(place, "move", "dead", "other", "--json"))["moved"] == 3
    assert sorted(each["body"] for each in drained(place, "other")) == ["4", "late", "never died"]


@pytest.mark.timeout(90)
def test_interrupt_leaves_each_message_in_one_place(place: str) -> None:
    with program(place, "move", "line", "moved", "--rate", "200") as process:
        deadline = time.monotonic() + 60
        while not held(place, "moved"):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    moved = held(place, "moved")
    assert errors == f"interrupted\n{moved:,} moved\n"
    assert 0 < moved < MANY
    assert held(place, "line") == MANY - moved
    assert told(run(place, "move", "line", "moved", "--json"))["moved"] == MANY - moved
    assert held(place, "moved") == MANY


def held(path: str, queue: str) -> int:
    """The messages of a queue in the file, which another process may have open."""
    return sum(each.waiting for each in read_stats(path).queues if each.name == queue)
