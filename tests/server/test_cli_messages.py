"""``broker-client publish``, ``get``, ``peek``, ``purge``, ``move`` and ``replay``, on a server of
ours and on RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiormq
import pytest
from pamqp.commands import Basic
from typer.testing import CliRunner, Result

from broker_client.cli.main import app
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture(params=["server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a broker with the empty queues ``q``, ``other`` and ``dead``; ``q`` dead-letters."""
    if request.param == "server":
        url = request.getfixturevalue("served").url()
        asyncio.run(_prepare(url))
        yield url
        return
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = rabbitmq.make_vhost()
    url = rabbitmq.url(vhost)
    asyncio.run(_prepare(url))
    yield url
    rabbitmq.delete_vhost(vhost)


async def _prepare(url: str) -> None:
    async with _channel(url) as channel:
        for name in ("q", "other", "dead"):
            await channel.queue_delete(name)
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await channel.queue_declare("q", durable=True, arguments=to_dead)
        for name in ("other", "dead"):
            await channel.queue_declare(name, durable=True)


class _channel:  # noqa: N801 - used as a function
    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Any:
        self._connection = await aiormq.connect(self._url)
        return await self._connection.channel()

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


def run(url: str, command: str, *arguments: str, input: str | bytes | None = None) -> Result:
    options = {"BROKER_CLIENT_URL": url}
    return CliRunner().invoke(app, [command, *arguments], env=options, input=input)


def told(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def drained(url: str, queue: str) -> list[Any]:
    """Everything in `queue`, which is empty then."""
    result = run(url, "get", queue, "--count", "100000", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies(url: str, queue: str) -> list[str]:
    return [message["body"] for message in drained(url, queue)]


def reject(url: str, queue: str, count: int) -> None:
    """Make dead letters of what is in `queue`."""

    async def run_it() -> None:
        async with _channel(url) as channel:
            for _ in range(count):
                got = await channel.basic_get(queue)
                await channel.basic_reject(got.delivery.delivery_tag, requeue=False)
            await channel.basic_qos(prefetch_count=1)

    asyncio.run(run_it())


def test_lines_of_standard_input_are_published_and_taken_in_order(url: str) -> None:
    lines = [f"line {i}" for i in range(1_203)]
    result = run(url, "publish", "q", input="\n".join(lines))
    assert (result.exit_code, result.stdout) == (0, "1,203 confirmed\n")
    assert bodies(url, "q") == lines


def test_files_are_published_whole(url: str, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"\xff\n" + file.name.encode())
    assert told(run(url, "publish", "q", *map(str, files), "--json")) == {
        "confirmed": 2,
        "refused": 0,
    }
    [first, second] = drained(url, "q")
    assert (first["body_base64"], second["body_base64"]) == ("/wph", "/wpi")


def test_json_lines_carry_headers_keys_and_properties(url: str) -> None:
    lines = [
        {"body": {"id": 7}, "headers": {"kind": "a"}},
        {"body": "text", "routing_key": "other", "properties": {"correlation_id": "c"}},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert run(url, "publish", "q", "--json-lines", input=text).exit_code == 0
    [message] = drained(url, "q")
    assert message["body"] == '{"id": 7}'
    assert message["properties"]["headers"] == {"kind": "a"}
    assert message["properties"]["content_type"] == "application/json"
    [message] = drained(url, "other")
    assert (message["body"], message["properties"]["correlation_id"]) == ("text", "c")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: is no JSON"),
        ("[]", "line 2: is no object with a body"),
        ('{"body": 1, "nope": 2}', "line 2: 'nope' is none of"),
        ('{"body": 1, "headers": 2}', "line 2: headers and properties are objects"),
        ('{"body_base64": "?"}', "line 2: body_base64 is no base64"),
        ('{"body": 1, "properties": {"priority": "x"}}', "line 2: property 'priority' is none of"),
    ],
)
def test_a_wrong_line_is_told_with_its_number_and_what_was_confirmed_before(
    url: str, line: str, why: str
) -> None:
    result = run(url, "publish", "q", "--json-lines", input=f'{{"body": "good"}}\n{line}\n')
    assert result.exit_code == 1
    assert why in result.stderr
    assert "Traceback" not in result.stderr
    assert len(bodies(url, "q")) == int(result.stdout.split()[0])


def test_what_no_queue_takes_is_told_and_status_1(url: str) -> None:
    result = run(url, "publish", "nowhere", input="a\nb\n")
    assert (result.exit_code, result.stdout) == (1, "0 confirmed, 2 refused\n")
    assert "message 2: no queue takes it (exchange '', routing key 'nowhere')" in result.stderr


def test_an_exchange_that_is_not_there_is_told_and_status_1(url: str) -> None:
    result = run(url, "publish", "k", "--exchange", "nope", input="a\n")
    assert result.exit_code == 1
    assert "no exchange 'nope'" in result.stderr
    assert "Traceback" not in result.stderr


def test_peek_leaves_messages_in_their_order(url: str) -> None:
    run(url, "publish", "q", input="1\n2\n3\n")
    peeked = run(url, "peek", "q", "--count", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["body"] for line in peeked] == ["1", "2"]
    assert bodies(url, "q") == ["1", "2", "3"]


def test_peek_prints_nothing_that_a_terminal_would_obey(url: str) -> None:
    run(url, "publish", "q", input="\x1b[31mred")
    printed = run(url, "peek", "q").stdout
    assert "\x1b" not in printed
    assert "\\x1b[31mred" in printed


def test_an_empty_queue_is_said_to_be_empty(url: str) -> None:
    result = run(url, "get", "q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "q is empty\n")


@pytest.mark.parametrize("command", ["get", "peek", "purge", "move", "replay"])
def test_a_queue_that_is_not_there_is_one_line_and_status_1(url: str, command: str) -> None:
    more = {"purge": ["--yes"], "move": ["q"]}.get(command, [])
    result = run(url, command, "nope", *more)
    assert result.exit_code == 1
    assert "no queue 'nope'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_purge_drops_what_is_ready(url: str) -> None:
    run(url, "publish", "q", input="1\n2\n")
    assert run(url, "purge", "q", input="n\n").exit_code == 1
    assert told(run(url, "purge", "q", "--yes", "--json")) == {"purged": 2}
    assert bodies(url, "q") == []


def test_move_takes_all_or_as_many_as_asked_in_order(url: str) -> None:
    run(url, "publish", "q", input="\n".join(map(str, range(1_000))))
    assert told(run(url, "move", "q", "other", "--limit", "300", "--json"))["moved"] == 300
    assert bodies(url, "other") == [str(i) for i in range(300)]
    result = run(url, "move", "q", "other")
    assert (result.exit_code, result.stdout) == (0, "700 moved\n")
    assert bodies(url, "other") == [str(i) for i in range(300, 1_000)]
    assert bodies(url, "q") == []


def test_a_moved_message_keeps_its_properties_and_goes_to_one_queue(url: str) -> None:
    async def publish() -> None:
        async with _channel(url) as channel:
            properties = Basic.Properties(
                message_id="m", user_id="guest", headers={"CC": ["dead"], "kind": "a"}, priority=3
            )
            await channel.basic_publish(b"x", routing_key="q", properties=properties)

    asyncio.run(publish())
    assert bodies(url, "dead") == ["x"]
    run(url, "move", "q", "other")
    [message] = drained(url, "other")
    assert message["properties"]["message_id"] == "m"
    assert message["properties"]["priority"] == 3
    assert message["properties"]["headers"] == {"kind": "a", "x-original-user-id": "guest"}
    assert bodies(url, "dead") == []


def test_what_the_target_does_not_take_stays_where_it_was(url: str) -> None:
    run(url, "publish", "q", input="1\n2\n")
    result = run(url, "move", "q", "nowhere")
    assert (result.exit_code, result.stdout) == (1, "0 moved\n")
    assert "2 stay where they are: no queue takes it" in result.stderr
    assert bodies(url, "q") == ["1", "2"]


def test_a_queue_cannot_be_moved_to_itself(url: str) -> None:
    assert run(url, "move", "q", "q").exit_code == 1


def test_replay_counts_first_and_then_puts_back_what_was_asked_for(url: str) -> None:
    lines = [json.dumps({"body": str(i), "headers": {"odd": str(i % 2)}}) for i in range(6)]
    run(url, "publish", "q", "--json-lines", input="\n".join(lines))
    reject(url, "q", 6)
    run(url, "publish", "dead", input="never died\n")
    asked = ("replay", "dead", "--reason", "rejected", "--from", "q", "--header", "odd=1")
    dry = run(url, *asked, "--json")
    assert told(dry) == {
        "seen": 7,
        "would_replay": [{"queue": "q", "reason": "rejected", "count": 3}],
    }
    assert bodies(url, "q") == []
    done = run(url, *asked, "--yes")
    assert (done.exit_code, done.stdout) == (0, "3 moved, 4 left as they were\n")
    replayed = drained(url, "q")
    assert [message["body"] for message in replayed] == ["1", "3", "5"]
    assert replayed[0]["properties"]["headers"] == {"odd": "1"}
    assert bodies(url, "dead") == ["0", "2", "4", "never died"]


def test_replay_of_the_first_few_by_age(url: str) -> None:
    run(url, "publish", "q", input="1\n2\n3\n")
    reject(url, "q", 3)
    assert told(run(url, "replay", "dead", "--older-than", "3600", "--yes", "--json"))["moved"] == 0
    assert told(run(url, "replay", "dead", "--limit", "2", "--yes", "--json"))["moved"] == 2
    assert bodies(url, "q") == ["1", "2"]
    assert bodies(url, "dead") == ["3"]


def test_an_interrupt_leaves_each_message_in_one_place(url: str) -> None:
    lines = [str(i) for i in range(3_000)]
    run(url, "publish", "q", input="\n".join(lines))
    command = [sys.executable, "-m", "broker_client", "move", "q", "other", "--rate", "400"]
    environment = {**os.environ, "BROKER_CLIENT_URL": url}
    process = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A run in the background of a shell ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 15
        while _ready(url, "other") == 0:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output, errors) == (130, "", "interrupted\n")
    moved = bodies(url, "other")
    assert 0 < len(moved) < 3_000
    assert moved + bodies(url, "q") == lines


def _ready(url: str, queue: str) -> int:
    async def count() -> int:
        async with _channel(url) as channel:
            return int((await channel.queue_declare(queue, passive=True)).message_count)

    return asyncio.run(count())


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("embedded://", "takes amqp:// or amqps://"),
        ("http://host", "--url:"),
        ("amqp://guest:guest@127.0.0.1:1/", "127.0.0.1:1"),
        ("amqp://guest:guest@127.0.0.1/?heartbeat=5", "takes no query"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_without_a_traceback(address: str, why: str) -> None:
    result = run(address, "get", "q")
    assert result.exit_code == 1
    assert why in result.stderr
    assert "Traceback" not in result.stderr
    assert "guest:guest" not in result.stderr
