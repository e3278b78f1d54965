"""``broker-client stats`` on the file of a running node, and on other files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.message import Outgoing, Properties
from broker_client.transport.embedded.nodes import EmbeddedNodes


async def a_running_file(path: Path) -> EmbeddedNodes:
    """Three messages in `q`, one handed out, one deferred; two of them in `copies` too."""
    nodes = EmbeddedNodes()
    link = await nodes.connector(f"embedded://{path}", "/").connect(timeout=10.0)
    channel = await link.open_channel(confirm=True)
    await channel.declare_queue("q")
    await channel.declare_queue("copies")
    await channel.declare_exchange("both", "fanout")
    for queue in ("q", "copies"):
        await channel.bind_queue(queue, "both", "")
    persistent = Properties(delivery_mode=2)
    await channel.publish([Outgoing("both", "", body, persistent) for body in (b"12345", b"67890")])
    await channel.publish([Outgoing("", "q", b"1234567890", persistent)])
    first, second = await channel.get("q"), await channel.get("q")
    assert first is not None
    assert second is not None
    channel.requeue_later(second.delivery_tag, 60.0)
    await link.close()  # which waits for the disk; unsettled messages are requeued
    return nodes


async def test_counts_what_is_in_the_file_of_a_running_node(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    nodes = await a_running_file(path)
    result = CliRunner().invoke(app, ["stats", str(path), "--json"])
    await nodes.close()
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    queues = {each["name"]: each for each in found["queues"]}
    assert found["messages"] == 3
    assert {key: queues["q"][key] for key in ("waiting", "deferred", "delivered")} == {
        "waiting": 2,
        "deferred": 1,
        "delivered": 2,
    }
    assert (queues["q"]["most_attempts"], queues["q"]["body_bytes"]) == (1, 20)
    assert (queues["copies"]["waiting"], queues["copies"]["delivered"]) == (2, 0)


async def test_prints_a_table_for_people(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    nodes = await a_running_file(path)
    await nodes.close()
    result = CliRunner().invoke(app, ["stats", str(path)])
    assert result.exit_code == 0
    assert "most attempts" in result.output
    assert "3 messages" in result.output


def test_file_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    result = CliRunner().invoke(app, ["stats", str(path)])
    assert result.exit_code == 1
    assert "there is no such file" in result.stderr
    assert not path.exists()


def test_folder_is_no_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["stats", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no such file" in result.stderr


def test_check_of_what_is_no_store_does_not_send_back_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one" * 100)
    result = CliRunner().invoke(app, ["store", "check", str(path)])
    assert (result.exit_code, result.stderr) == (1, f"store {path}: file is not a database\n")


def test_file_of_another_program_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one" * 100)
    result = CliRunner().invoke(app, ["stats", str(path)])
    assert result.exit_code == 1
    assert str(path) in result.stderr


@pytest.mark.parametrize(
    "command", [["stats"], ["store", "check"], ["store", "compact"], ["check"], ["import-rascal"]]
)
@pytest.mark.parametrize("url", ["amqp://app:hunter2@h/", "embedded:///var/lib/app.db"])
def test_address_in_place_of_a_file_is_refused_without_its_password(
    command: list[str], url: str
) -> None:
    result = CliRunner().invoke(app, [*command, url])
    output = result.output + result.stderr
    assert result.exit_code != 0
    assert "is an address" in " ".join(output.split())
    assert "hunter2" not in output


def test_import_writes_a_file_for_its_owner_only(tmp_path: Path) -> None:
    source, target = tmp_path / "rascal.json", tmp_path / "app.yaml"
    source.write_text('{"vhosts": {"/": {"connection": "amqp://u:p@h/"}}}')
    assert CliRunner().invoke(app, ["import-rascal", str(source), "-o", str(target)]).exit_code == 0
    assert target.stat().st_mode & 0o077 == 0
