"""``broker-client plan`` and ``apply`` on a file, on a server of ours and on RabbitMQ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from broker_client import Broker
from broker_client.cli.main import app
from broker_client.config import ManagementConfig
from broker_client.connection.management import VhostManagement
from broker_client.errors import TopologyMismatchError
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

CHANGES = 3
DECLARED: dict[str, Any] = {
    "exchanges": {"orders": {"type": "topic"}, "dead": {"type": "fanout"}},
    "queues": {
        "work": {"options": {"dead_letter_exchange": "dead", "message_ttl": "1h"}},
        "cemetery": {"options": {"arguments": {"x-queue-type": "classic"}}},
        "mine": {"options": {"exclusive": True}},
    },
    "bindings": ["orders[a, b] -> work", "dead -> cemetery", "orders -> mine"],
}
MADE = {
    "exchange orders",
    "exchange dead",
    "queue work",
    "queue cemetery",
    "binding orders[a] -> work",
    "binding orders[b] -> work",
    "binding dead[#] -> cemetery",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A broker for configurations, and the options that let a plan see all of it."""

    url: str
    folder: Path
    management: tuple[str, ...] = ()

    def file(self, vhost: dict[str, Any]) -> str:
        path = self.folder / "app.yaml"
        path.write_text(yaml.safe_dump(self.config(vhost)))
        return str(path)

    def config(self, vhost: dict[str, Any]) -> dict[str, Any]:
        return {"vhosts": {"/": {"connection": self.url, **vhost}}}

    def run(self, command: str, vhost: dict[str, Any], *options: str) -> Result:
        arguments = [command, self.file(vhost), *self.management, *options]
        return CliRunner().invoke(app, arguments)

    def changes(self, vhost: dict[str, Any], status: int | None = None) -> set[str]:
        result = self.run("plan", vhost, "--json")
        found = {
            f"{each['action']} {each['kind']} {each['name']}"
            for each in json.loads(result.stdout)["changes"]
        }
        expected = (CHANGES if found else 0) if status is None else status
        assert result.exit_code == expected
        return found

    def use(self, vhost: dict[str, Any], *publishes: tuple[str, Any]) -> None:
        async def use() -> None:
            async with Broker.create(self.config(vhost)) as broker:
                for name, content in publishes:
                    await (await broker.publish(name, content))

        asyncio.run(use())


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served("--http", "127.0.0.1:0") as served:
        yield served


@pytest.fixture(params=["file", "server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param == "file":
        yield Target(f"embedded://{tmp_path}/broker.db", tmp_path)
    elif request.param == "server":
        server: Served = request.getfixturevalue("served")
        [http] = [each for each in server.addresses if each.startswith("http")]
        login = ManagementConfig(url=SecretStr(http), timeout=5.0)
        api = login.completed("", "guest", SecretStr("guest"))
        asyncio.run(VhostManagement(api, tmp_path.name).create())
        yield Target(server.url(tmp_path.name), tmp_path, ("--management", http))
    else:
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        vhost = rabbitmq.make_vhost()
        http = f"http://127.0.0.1:{rabbitmq.management_port}"
        yield Target(rabbitmq.url(vhost), tmp_path, ("--management", http))
        rabbitmq.delete_vhost(vhost)


def without(vhost: dict[str, Any], section: str, *names: str) -> dict[str, Any]:
    kept = {key: each for key, each in vhost[section].items() if key not in names}
    return {**vhost, section: kept}


def test_plan_of_an_empty_broker_creates_all_and_changes_nothing(target: Target) -> None:
    for _ in range(2):
        assert target.changes(DECLARED) == {f"create {each}" for each in MADE}


def test_apply_asks_and_then_there_is_nothing_to_change(target: Target) -> None:
    assert target.run("apply", DECLARED).exit_code == 1  # nobody said yes
    assert len(target.changes(DECLARED)) == len(MADE)
    result = target.run("apply", DECLARED, "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "applied")
    assert target.changes(DECLARED) == set()
    assert target.run("plan", DECLARED).stdout.splitlines()[-1] == "nothing to change"


def test_plan_agrees_with_what_a_broker_declares(target: Target) -> None:
    target.use(DECLARED)
    assert target.changes(DECLARED) == set()


def test_other_settings_of_a_queue_are_told_and_are_what_the_broker_refuses(
    target: Target,
) -> None:
    queues = {
        "ttl": ({"message_ttl": "1h"}, {"message_ttl": "2h"}),
        "dead": ({"dead_letter_exchange": "dead"}, {}),
        "length": ({}, {"max_length": 5}),
        "auto": ({"auto_delete": False}, {"auto_delete": True}),
        "same": ({"max_priority": 3}, {"max_priority": 3}),
    }
    before = {"exchanges": ["dead"], "queues": {n: {"options": q[0]} for n, q in queues.items()}}
    after = {"exchanges": ["dead"], "queues": {n: {"options": q[1]} for n, q in queues.items()}}
    target.use(before)
    differing = queues.keys() - {"same"}
    assert target.changes(after) == {f"differs queue {name}" for name in differing}
    shown = target.run("plan", after).stdout
    for told in (
        "x-message-ttl is 3600000, declared 7200000",
        "x-dead-letter-exchange is 'dead', declared not set",
        "x-max-length is not set, declared 5",
        "auto_delete is False, declared True",
        "move the messages there",
    ):
        assert told in shown
    with pytest.raises(TopologyMismatchError, match=r"broker-client move.*--replace"):
        target.use(after)
    applied = target.run("apply", after, "--yes")
    assert applied.exit_code == 1
    refused = [line for line in applied.stderr.splitlines() if line.startswith("refused: ")]
    assert {name for name in queues if any(f"queue '{name}' has" in line for line in refused)} == (
        differing
    )
    assert target.changes(before) == set()


def test_replace_declares_an_empty_queue_anew_with_all_its_bindings(target: Target) -> None:
    others = {**DECLARED, "bindings": [*DECLARED["bindings"], "orders[theirs] -> work"]}
    target.use(others)
    queues = {**DECLARED["queues"], "work": {"options": {"max_length": 5}}}
    exchanges = {**DECLARED["exchanges"], "orders": {"type": "direct"}}
    changed = {**DECLARED, "queues": queues, "exchanges": exchanges}
    left = {"left binding orders[theirs] -> work"}
    assert target.changes(changed) == {"differs queue work", "differs exchange orders", *left}
    result = target.run("apply", changed, "--yes", "--replace")
    assert (result.exit_code, result.stderr) == (0, "")
    assert target.changes(changed, status=0) == left


def test_replace_keeps_a_queue_with_a_message(target: Target) -> None:
    target.use(DECLARED, ("/work", "precious"))
    changed = {**DECLARED, "queues": {**DECLARED["queues"], "work": {}}}
    result = target.run("apply", changed, "--yes", "--replace")
    assert result.exit_code == 1
    assert "queue work: it has 1 message, and stays" in result.stderr
    assert target.changes(DECLARED) == set()


def test_what_nothing_declares_is_left_until_it_is_pruned(target: Target) -> None:
    target.use(DECLARED, ("/cemetery", "precious"))
    fewer = without(without(DECLARED, "queues", "cemetery"), "exchanges", "dead")
    fewer = {**fewer, "bindings": ["orders[a] -> work"]}
    left = {"left binding orders[b] -> work", "left queue cemetery", "left exchange dead"}
    assert target.changes(fewer, status=0) == left
    assert target.run("plan", fewer, "--prune").exit_code == CHANGES
    assert target.run("apply", fewer, "--yes").exit_code == 0
    assert target.changes(fewer, status=0) == left

    result = target.run("apply", fewer, "--yes", "--prune")
    assert result.exit_code == 1
    assert "queue cemetery: it has 1 message, and stays" in result.stderr
    # The exchange still has a binding to that queue.
    assert target.changes(fewer, status=0) == {"left queue cemetery", "left exchange dead"}

    async def consume() -> None:
        only = {"queues": {"cemetery": DECLARED["queues"]["cemetery"]}}
        async with Broker.create(target.config(only)) as broker:
            handled = asyncio.Event()

            @broker.handle("/cemetery")
            async def handle(content: str) -> None:
                handled.set()

            await handled.wait()

    asyncio.run(consume())
    result = target.run("apply", fewer, "--yes", "--prune")
    assert (result.exit_code, result.stderr) == (0, "")
    assert target.changes(fewer) == set()


def test_a_namespace_sees_only_its_own(target: Target) -> None:
    target.use(DECLARED)
    target.use({**DECLARED, "namespace": "blue"})
    fewer = {"namespace": "blue", "queues": DECLARED["queues"]}
    found = target.changes(fewer, status=0)
    assert found == {"left exchange blue:dead", "left exchange blue:orders"}


def test_a_queue_that_is_only_checked_and_not_there_is_missing(target: Target) -> None:
    checked = {"queues": {"theirs": {"assert": False, "check": True}}}
    assert target.changes(checked) == {"missing queue theirs"}
    result = target.run("apply", checked, "--yes")
    assert result.exit_code == 1
    assert "theirs" in result.stderr


@pytest.mark.rabbitmq
def test_without_management_a_plan_tells_what_is_not_there(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    vhost = rabbitmq.make_vhost()
    target = Target(rabbitmq.url(vhost), tmp_path)
    target.use({"exchanges": ["orders"], "queues": {"other": {}}})
    assert target.changes(DECLARED) == {f"create {each}" for each in MADE - {"exchange orders"}}
    assert "--management URL does" in target.run("plan", DECLARED).stdout
    assert target.run("apply", DECLARED, "--yes").exit_code == 0
    assert target.changes(DECLARED) == set()
    rabbitmq.delete_vhost(vhost)


@pytest.mark.rabbitmq
def test_a_vhost_is_planned_and_made_over_management(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    http = f"http://127.0.0.1:{rabbitmq.management_port}"
    target = Target(rabbitmq.url("planned"), tmp_path, ("--management", http))
    assert "missing vhost /" in target.changes(DECLARED)
    config = {**target.config(DECLARED)["vhosts"]["/"], "assert": True}
    config["connection"] = {"url": target.url, "management": http}
    path = tmp_path / "asserted.yaml"
    path.write_text(yaml.safe_dump({"vhosts": {"/": config}}))
    planned = CliRunner().invoke(app, ["plan", str(path)])
    assert "+ /: vhost /" in planned.stdout
    assert CliRunner().invoke(app, ["apply", str(path), "--yes"]).exit_code == 0
    assert CliRunner().invoke(app, ["plan", str(path)]).exit_code == 0
    rabbitmq.delete_vhost("planned")


def test_a_broker_in_memory_has_nothing_to_plan(tmp_path: Path) -> None:
    result = Target("embedded://", tmp_path).run("plan", DECLARED)
    assert result.exit_code == 0
    assert "starts empty" in result.stdout


def test_a_plan_makes_no_file(tmp_path: Path) -> None:
    target = Target(f"embedded://{tmp_path}/broker.db", tmp_path)
    assert target.run("plan", DECLARED).exit_code == CHANGES
    assert [path.name for path in tmp_path.iterdir()] == ["app.yaml"]


@pytest.mark.parametrize(
    ("management", "told"),
    [
        ("ftp://localhost", "--management"),
        ("http://guest:hidden@127.0.0.1:1", "failed to list exchanges of vhost"),
    ],
)
def test_a_management_api_that_cannot_be_used_is_one_line_without_the_password(
    tmp_path: Path, management: str, told: str
) -> None:
    target = Target("amqp://guest:hidden@127.0.0.1:1", tmp_path, ("--management", management))
    result = target.run("plan", DECLARED)
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "hidden" not in result.output
