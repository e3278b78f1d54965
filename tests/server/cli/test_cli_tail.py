"""``broker-client tail``, on a running application, on a server of ours and on RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.server.cli.test_cli_where import application
from tests.support.command_line import ChannelTo, bodies, program, run
from tests.support.rabbitmq import RabbitMQ

CONFIG = """
vhosts:
  /:
    connection: {{url: "{url}"}}
    exchanges: [{{name: orders, type: topic}}]
    queues: [q]
    bindings: ["orders[order.#] -> q"]
"""


def tailing(url: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """``tail`` with lines of JSON, as a program."""
    return program(url, "tail", *arguments, "--json")


def body(process: subprocess.Popen[str]) -> str:
    """The body of the next message that is printed, other than those of `publish_until_seen`."""
    assert process.stdout is not None
    while (found := json.loads(process.stdout.readline())["body"]) == "first":
        pass
    return str(found)


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and the output after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


async def _bind(url: str) -> None:
    async with ChannelTo(url) as channel:
        await channel.exchange_declare("orders", exchange_type="topic", durable=True)
        await channel.queue_bind("q", "orders", "order.#")


def publish_until_seen(url: str, process: subprocess.Popen[str]) -> None:
    """Publish ``first`` until it is printed: then the tail is ready."""
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    while not select.select([process.stdout], [], [], 0.1)[0]:
        assert time.monotonic() < deadline
        run(url, "publish", "order.new", "--exchange", "orders", input="first\n")


def test_tail_prints_copies_and_takes_nothing(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asyncio.run(_bind(url))
    file = tmp_path / "app.yaml"
    file.write_text(CONFIG.format(url=url))
    asked: tuple[str, ...]
    if request.node.callspec.params["url"] == "server":
        asked = ("--exchange", "orders", "--key", "order.*")
    else:
        asked = ("q", "--config", str(file))
    with tailing(url, *asked) as process:
        publish_until_seen(url, process)
        run(url, "publish", "other.key", "--exchange", "orders", input="unseen\n")
        run(url, "publish", "order.new", "--exchange", "orders", input="second\n")
        assert body(process) == "second"
        assert interrupted(process) == (130, "interrupted\n")
    left = bodies(url, "q")
    assert set(left[:-1]) == {"first"}
    assert left[-1] == "second"


def queue_names(url: str) -> list[str]:
    queues = run(url, "queues", "--json").stdout.splitlines()
    return sorted(json.loads(each)["name"] for each in queues)


def test_tail_of_a_running_application_leaves_no_queue_behind(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    url = str(path)
    with application(path, "bound"), tailing(url, "q") as process:
        publish_until_seen(url, process)
        assert len(queue_names(url)) == 3
        assert interrupted(process)[0] == 130
        deadline = time.monotonic() + 60
        while (names := queue_names(url)) != ["other", "q"]:  # the temporary one goes last
            assert time.monotonic() < deadline, names
        unbound = run(url, "tail", "other")
        assert (unbound.exit_code, "other has no bindings" in unbound.stderr) == (1, True)
        missing = run(url, "tail", "nope")
        assert (missing.exit_code, "there is no queue 'nope'" in missing.stderr) == (1, True)
    closed = run(url, "tail", "q")
    assert (closed.exit_code, "no process has the file open" in closed.stderr) == (1, True)


def test_tail_that_takes_gives_back_what_it_has_not_printed(url: str) -> None:
    run(url, "publish", "q", input="1\n2\n3\n")
    result = run(url, "tail", "q", "--take", "--count", "2", "--json")
    assert [json.loads(line)["body"] for line in result.stdout.splitlines()] == ["1", "2"]
    assert bodies(url, "q") == ["3"]


def test_tail_says_what_is_missing(url: str) -> None:
    without = run(url, "tail", "q")
    assert (without.exit_code, "AMQP does not list bindings" in without.stderr) == (1, True)
    for wrong in ([], ["q", "--exchange", "x"], ["q", "--key", "x"], ["--take"]):
        assert run(url, "tail", *wrong).exit_code == 2
    missing = run(url, "tail", "--exchange", "nope")
    assert (missing.exit_code, "no exchange 'nope'" in missing.stderr) == (1, True)


def test_tail_ends_where_the_queue_is_deleted(url: str) -> None:
    run(url, "publish", "q", input="1\n")
    with tailing(url, "q", "--take") as process:
        assert body(process) == "1"

        async def delete() -> None:
            async with ChannelTo(url) as channel:
                await channel.queue_delete("q")

        asyncio.run(delete())
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (1, "q was deleted\n")


@pytest.mark.rabbitmq
def test_tail_knows_the_bindings_of_rabbitmq_by_its_management_api(rabbitmq: RabbitMQ) -> None:
    vhost = rabbitmq.make_vhost()
    url = rabbitmq.url(vhost)

    async def prepare() -> None:
        async with ChannelTo(url) as channel:
            await channel.queue_declare("q", durable=True)

    asyncio.run(prepare())
    asyncio.run(_bind(url))
    api = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    try:
        with tailing(url, "q", "--management", api) as process:
            publish_until_seen(url, process)
    finally:
        rabbitmq.delete_vhost(vhost)
