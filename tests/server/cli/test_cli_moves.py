"""``broker-client move`` and ``replay``, on a server of ours and on RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from pamqp.commands import Basic

from tests.support.command_line import ChannelTo, bodies, drained, ready, reject, run, told


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
        async with ChannelTo(url) as channel:
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
    async def declare() -> None:
        async with ChannelTo(url) as channel:
            await channel.queue_delete("full")
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await channel.queue_declare("full", durable=True, arguments=full)

    asyncio.run(declare())
    run(url, "publish", "full", input="0\n")
    run(url, "publish", "q", input="1\n2\n")
    result = run(url, "move", "q", "full")
    assert (result.exit_code, result.stdout) == (1, "0 moved\n")
    assert "2 stay where they are: the broker refused it (nack)" in result.stderr
    assert bodies(url, "q") == ["1", "2"]


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_target_that_does_not_exist_is_refused_also_where_nothing_is_to_be_moved(
    url: str, options: tuple[str, ...]
) -> None:
    result = run(url, "move", "q", "nowhere", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no queue 'nowhere' in vhost" in result.stderr


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


def moving(url: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that moves ``q`` to ``other``, once it has moved something."""
    process = subprocess.Popen(
        [sys.executable, "-m", "broker_client", "move", "q", "other", *arguments],
        env={**os.environ, "BROKER_CLIENT_URL": url},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # In the background of a shell SIGINT is ignored, also by children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while ready(url, "other") == 0:
        assert time.monotonic() < deadline
    return process


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, str]:
    """End a process by a signal; returns its output."""
    try:
        process.send_signal(number)
        return process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()


def test_an_interrupt_leaves_each_message_in_one_place(url: str) -> None:
    lines = [str(i) for i in range(1_500)]
    run(url, "publish", "q", input="\n".join(lines))
    process = moving(url, "--rate", "100")
    output, errors = ended(process, signal.SIGINT)
    moved = bodies(url, "other")
    assert (process.returncode, output) == (130, "")
    assert errors == f"interrupted\n{len(moved):,} moved\n"
    assert 0 < len(moved) < 1_500
    assert moved + bodies(url, "q") == lines


def test_a_move_after_a_killed_one_copies_nothing_twice(url: str) -> None:
    lines = [str(i) for i in range(4_000)]
    run(url, "publish", "q", input="\n".join(lines))
    process = moving(url, "--rate", "400")  # it is still running when it is killed
    ended(process, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    left = ready_in_all(url)
    assert left["q"]
    assert left["q"] + left["other"] >= len(lines)
    assert left["q"] + left["other"] <= len(lines) + 1_000
    again = told(run(url, "move", "q", "other", "--json"))
    assert again["already_moved"] == left["q"] + left["other"] - len(lines)
    assert again["left"] == 0
    assert sorted(map(int, bodies(url, "other"))) == list(range(4_000))


def ready_in_all(url: str) -> dict[str, int]:
    """Ready messages of both queues, once those of a killed move are requeued."""
    deadline = time.monotonic() + 60
    while True:
        found = {name: ready(url, name) for name in ("q", "other")}
        if sum(found.values()) >= 4_000 and found == {n: ready(url, n) for n in found}:
            return found
        assert time.monotonic() < deadline, found


def test_a_message_that_was_in_both_queues_from_the_start_is_moved_nevertheless(url: str) -> None:
    async def publish() -> None:
        async with ChannelTo(url) as channel:
            await channel.exchange_declare("fan", exchange_type="fanout")
            for queue in ("q", "other"):
                await channel.queue_bind(queue, "fan")
            properties = Basic.Properties(message_id="m")
            await channel.basic_publish(
                b"x", exchange="fan", routing_key="other", properties=properties
            )
            await channel.exchange_delete("fan")

    asyncio.run(publish())
    run(url, "peek", "q")  # it is redelivered from now on
    assert told(run(url, "move", "q", "other", "--json"))["moved"] == 1
    assert bodies(url, "other") == ["x", "x"]


def test_a_move_of_chosen_messages_leaves_the_others_in_order(url: str) -> None:
    lines = [
        json.dumps(
            {"body": str(i), "headers": {"on": i % 2 == 0}, "properties": {"message_id": f"m{i}"}}
        )
        for i in range(6)
    ]
    run(url, "publish", "q", "--json-lines", input="\n".join(lines))
    chosen = ("q", "other", "--message-id", "m2", "--message-id", "m3", "--header", "on=true")
    dry = told(run(url, "move", *chosen, "--dry-run", "--json"))
    assert dry == {"seen": 6, "would_move": [{"queue": "other", "reason": "", "count": 1}]}
    assert told(run(url, "move", *chosen, "--json"))["moved"] == 1
    assert bodies(url, "other") == ["2"]
    assert bodies(url, "q") == ["0", "1", "3", "4", "5"]


def test_a_count_of_thousands_leaves_the_queue_answering(url: str) -> None:
    """Requeued one by one, 10,000 messages kept a classic queue of RabbitMQ 3.10 busy for 20 s."""
    run(url, "publish", "q", input="\n".join(map(str, range(10_000))))
    assert told(run(url, "move", "q", "other", "--dry-run", "--json"))["seen"] == 10_000
    began = time.monotonic()
    [first] = [json.loads(line) for line in run(url, "get", "q", "--json").stdout.splitlines()]
    assert first["body"] == "0"
    assert time.monotonic() - began < 10
    assert ready(url, "q") == 9_999
