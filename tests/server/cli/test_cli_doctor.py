"""``broker-client doctor``, on a file, a running application, our server and RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.server.cli.test_cli_where import application
from tests.support.command_line import run
from tests.support.own_server import free_port
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

CONFIG = """
vhosts:
  /:
    connection: {{url: "{url}"}}
    exchanges: [{{name: orders, type: topic}}]
    queues: [q]
    bindings: ["orders[order.#] -> q"]
    publications: {{placed: {{exchange: orders, routing_key: order.placed}}}}
    subscriptions: {{q: {{queue: q}}}}
"""


def findings(result: Result) -> dict[str, dict[str, Any]]:
    """The findings by check."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {each["check"]: each for each in lines}


def verdicts(result: Result) -> dict[str, str]:
    return {check: each["verdict"] for check, each in findings(result).items()}


def test_over_amqp_alone_it_says_what_it_cannot_see(url: str) -> None:
    result = run(url, "doctor", "--json")
    assert result.exit_code == 0
    found = findings(result)
    assert found["connect"]["verdict"] == found["login"]["verdict"] == "ok"
    assert found["alarms"]["verdict"] == "unknown"
    assert "--management" in found["alarms"]["advice"]


def test_a_refused_login_and_a_closed_port_are_problems_with_advice(url: str) -> None:
    refused = run(url.replace("guest:guest", "guest:wrongpass"), "doctor", "--json")
    assert (refused.exit_code, verdicts(refused)["login"]) == (1, "problem")
    assert "wrongpass" not in refused.output
    closed = run(f"amqp://guest:guest@127.0.0.1:{free_port()}", "doctor")
    assert closed.exit_code == 1
    assert closed.stdout.startswith("problem  connect ")
    assert "-> check host, port and TLS" in closed.stdout
    assert closed.stderr == ""


def test_a_topology_that_is_not_there_is_a_problem_until_it_is_applied(
    url: str, tmp_path: Path
) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(CONFIG.format(url=url).replace("orders", "elsewhere"))
    asked = ("doctor", "--config", str(file), "--json")
    before = findings(run("", *asked))["topology"]
    assert before["verdict"] == "problem"
    assert "exchange elsewhere is not there" in before["text"]
    run("", "apply", str(file), "--yes")
    after = run("", *asked)
    assert (after.exit_code, verdicts(after)["topology"]) == (0, "ok")


def test_of_a_file_in_and_without_its_process(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    file = tmp_path / "app.yaml"
    file.write_text(CONFIG.format(url=f"embedded://{path}"))
    asked = ("doctor", "--config", str(file), "--json")
    with application(path, "bound"):
        run(str(path), "publish", "q", input="1\n")
        running = run("", *asked)
    assert running.exit_code == 0, running.stdout
    assert verdicts(running) == {
        "connect": "ok",
        "login": "ok",
        "alarms": "ok",
        "quorum": "ok",
        "topology": "ok",
        "consumers": "warning",
    }
    closed = run("", *asked)
    assert closed.exit_code == 0
    assert "no process has it open" in findings(closed)["connect"]["text"]
    elsewhere = run(str(path), "doctor", "--vhost", "nope")
    assert (elsewhere.exit_code, "there is no vhost 'nope'" in elsewhere.stdout) == (1, True)
    with path.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * 20_000)
    assert (damaged_result := run(str(path), "doctor")).exit_code == 1
    assert damaged_result.stdout.startswith("problem  connect ")


class ManagedBroker:
    """A broker with its management API."""

    def __init__(self, url: str, api: str) -> None:
        self.url, self.api = url, api


@pytest.fixture(params=["server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def managed(request: pytest.FixtureRequest) -> Iterator[ManagedBroker]:
    if request.param == "server":
        port = free_port()
        with Served("--http", f"127.0.0.1:{port}") as served:
            yield ManagedBroker(served.url(), f"http://guest:guest@127.0.0.1:{port}")
        return
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = rabbitmq.make_vhost()
    yield ManagedBroker(
        rabbitmq.url(vhost), f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    )
    rabbitmq.delete_vhost(vhost)


def test_with_the_management_api_it_sees_everything(managed: ManagedBroker, tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(CONFIG.format(url=managed.url))
    asked = ("doctor", "--config", str(file), "--management", managed.api, "--json")
    before = run("", *asked)
    assert before.exit_code == 1
    assert verdicts(before) == {
        "connect": "ok",
        "login": "ok",
        "version": "ok",
        "clock": "ok",
        "alarms": "ok",
        "quorum": "ok",
        "permissions": "ok",
        "topology": "problem",
    }
    run("", "apply", str(file), "--yes", "--management", managed.api)
    run(managed.url, "publish", "q", input="1\n")
    after = run("", *asked)
    assert (after.exit_code, verdicts(after)["topology"]) == (0, "ok"), after.stdout
    refused = managed.api.replace("guest:guest", "guest:wrongpass")
    wrong = run("", *asked[:3], "--management", refused, "--json")
    assert (wrong.exit_code, verdicts(wrong)["management"]) == (1, "problem")
    assert "wrongpass" not in wrong.output


@pytest.mark.rabbitmq
def test_permissions_that_are_missing_are_named(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    vhost = rabbitmq.make_vhost()
    rabbitmq.api("PUT", "users/narrow", {"password": "narrow", "tags": ""})
    rights = {"configure": "^q$", "write": "^(q|orders)$", "read": "^orders$"}
    rabbitmq.api("PUT", f"permissions/{vhost}/narrow", rights)
    file = tmp_path / "app.yaml"
    url = rabbitmq.url(vhost).replace("guest:guest", "narrow:narrow")
    file.write_text(CONFIG.format(url=url))
    api = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    try:
        result = run("", "doctor", "--config", str(file), "--management", api, "--json")
        found = findings(result)["permissions"]
        assert found["verdict"] == "problem"
        assert found["text"] == "narrow may not configure orders, read q"
    finally:
        rabbitmq.api("DELETE", "users/narrow")
        rabbitmq.delete_vhost(vhost)


@pytest.mark.rabbitmq
def test_an_alarm_is_a_problem(rabbitmq: RabbitMQ) -> None:
    api = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    rabbitmq.block()
    try:
        result = run(rabbitmq.url(), "doctor", "--management", api)
    finally:
        rabbitmq.unblock()
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert line.startswith("problem  alarms ")
