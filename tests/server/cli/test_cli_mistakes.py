"""Every command reports a user's mistake with its place and without a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from broker_client.cli.main import app, every_command
from tests.support.command_line import run
from tests.support.own_server import free_port

DOCUMENT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")

ON_BROKERS = {
    "publish": ("q",),
    "get": ("q",),
    "peek": ("q",),
    "tail": ("q", "--take"),
    "purge": ("q", "--yes"),
    "move": ("q", "other"),
    "replay": ("q",),
    "doctor": (),
}
"""Commands that connect by AMQP, with their arguments."""
ON_QUEUES = {"queues": (), "top": (), "pause": ("q",), "resume": ("q",), "graph": ()}
"""Commands that use a file or a management API."""
ON_FILES = {
    "stats": ("{file}",),
    "backup": ("{file}", "{file}.copy"),
    "store check": ("{file}",),
    "store compact": ("{file}",),
    "user passwd": ("{file}", "nobody"),
    "user list": ("{file}",),
    "user permit": ("{file}", "nobody"),
    "user delete": ("{file}", "nobody"),
    "vhost list": ("{file}",),
    "vhost delete": ("{file}", "v", "--yes"),
    "definitions export": ("{file}",),
}
"""Commands on the file of a broker."""
ON_CONFIGURATIONS = {
    "check": ("{file}",),
    "plan": ("{file}",),
    "apply": ("{file}",),
    "asyncapi": ("{file}",),
    "graph": ("{file}",),
    "import-rascal": ("{file}",),
    "serve": ("--config", "{file}", "--listen", "amqp://127.0.0.1:0"),
    "definitions import": ("{folder}/new.db", "{file}"),
}
"""Commands that read a file of the user's."""
OTHERS = {"run", "dashboard", "schema", "user add", "vhost add"}
"""Commands without such mistakes, or that are tested elsewhere."""

NO_JSON = {
    "run": "it prints nothing of its own",
    "serve": "it prints one line, and logs",
    "dashboard": "it prints one line, and logs",
    "schema": "it prints JSON",
    "asyncapi": "it prints JSON",
    "import-rascal": "it prints YAML",
    "definitions export": "it prints JSON",
    "user add": "it prints that it is done",
    "user passwd": "it prints that it is done",
    "user permit": "it prints that it is done",
    "user delete": "it prints that it is done",
    "vhost add": "it prints that it is done",
    "vhost delete": "it prints that it is done",
}


def commands() -> list[tuple[str, Any]]:
    """Every command and command of a group, by its name."""
    found: list[tuple[str, Any]] = []
    for name, command in every_command().items():
        group: dict[str, Any] = getattr(command, "commands", {})
        found += [(f"{name} {sub}", each) for sub, each in group.items()] or [(name, command)]
    return found


def documented() -> set[int]:
    """The exit statuses in the document."""
    table = DOCUMENT.split("\n## Exit status\n")[1]
    return {int(each) for each in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}


def told(result: Result, *statuses: int) -> str:
    """The error output, which must have the texts and no traceback."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in statuses, result.output
    assert set(statuses) <= documented()
    assert "Traceback" not in result.output
    assert result.output.strip()
    return result.output


def invoke(command: str, arguments: tuple[str, ...], **places: object) -> Result:
    given = [each.format(**places) for each in arguments]
    return CliRunner().invoke(app, [*command.split(), *given], input="")


def test_every_command_is_tried_here() -> None:
    tried = {*ON_BROKERS, *ON_QUEUES, *ON_FILES, *ON_CONFIGURATIONS, *OTHERS}
    assert {name for name, _ in commands()} == tried


@pytest.mark.parametrize(
    ("name", "command"), commands(), ids=lambda each: each if isinstance(each, str) else ""
)
def test_every_command_has_a_line_of_help_that_tells(name: str, command: Any) -> None:
    first = (command.help or "").split("\n\n")[0].replace("\n", " ")
    assert 20 < len(first) <= 100, first
    assert first.endswith(".")
    options = {option for each in command.params for option in each.opts}
    assert ("--json" in options) != (name in NO_JSON)


@pytest.mark.parametrize("command", ON_BROKERS)
def test_an_address_that_leads_nowhere_is_reported(command: str) -> None:
    port = free_port()
    arguments = ON_BROKERS[command]
    closed = told(run(f"amqp://app:secret@127.0.0.1:{port}", command, *arguments, input="x"), 1)
    assert str(port) in closed
    assert "secret" not in closed
    told(run("amqp://[", command, *arguments, input="x"), 1)
    told(run("ftp://host", command, *arguments, input="x"), 1)
    assert "/nowhere/app.db" in told(run("/nowhere/app.db", command, *arguments, input="x"), 1)
    told(run("", command, *arguments, input="x"), 2)


@pytest.mark.parametrize("command", ON_BROKERS)
def test_a_refused_login_is_reported_without_the_password(url: str, command: str) -> None:
    wrong = url.replace("guest:guest", "guest:wrongpass")
    assert "wrongpass" not in told(run(wrong, command, *ON_BROKERS[command], input="x"), 1)


@pytest.mark.parametrize("command", ON_QUEUES)
def test_a_management_api_that_leads_nowhere_is_reported(command: str) -> None:
    port = free_port()
    api = f"http://app:secret@127.0.0.1:{port}"
    said = told(run("", command, *ON_QUEUES[command], "--management", api), 1)
    assert str(port) in said
    assert "secret" not in said
    told(run("", command, *ON_QUEUES[command], "--management", "amqp://host"), 1)
    told(run("/nowhere/app.db", command, *ON_QUEUES[command]), 1)


def test_an_address_without_a_management_api_is_reported(url: str) -> None:
    amqp = url.partition("@")[2].partition("/")[0]
    told(run("", "queues", "--management", f"http://{amqp}"), 1)
    told(run(url, "doctor", "--management", f"http://{amqp}"), 1)


@pytest.mark.parametrize("command", ON_FILES)
@pytest.mark.parametrize("kind", ["missing", "folder", "text"])
def test_a_file_of_another_kind_is_reported(tmp_path: Path, command: str, kind: str) -> None:
    path = tmp_path / "app.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no database, but long enough to be taken for one\n" * 100)
    said = told(invoke(command, ON_FILES[command], file=path), 1)
    assert "app.db" in said


@pytest.mark.parametrize("command", ON_CONFIGURATIONS)
@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "nonsense"])
def test_a_configuration_that_cannot_be_used_is_reported(
    tmp_path: Path, command: str, kind: str
) -> None:
    path = tmp_path / "app.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif kind == "nonsense":
        path.write_text("{]")
    arguments = ON_CONFIGURATIONS[command]
    said = told(invoke(command, arguments, file=path, folder=tmp_path), 1)
    assert "app.yaml" in said


def test_store_check_and_compact_print_json(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    run("", "vhost", "add", str(path), "v")

    def found(*arguments: str) -> Any:
        return json.loads(run("", "store", *arguments, str(path), "--json").stdout)

    report = found("check")
    assert (report["messages"], report["problems"], report["queues"]) == (0, [], [])
    assert found("compact")["lost"] == 0
