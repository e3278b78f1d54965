"""``broker-client definitions``, on a file."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app

run = CliRunner()
DOCUMENT = {
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "queues": [
        {"name": "q", "vhost": "shop", "arguments": {}},
        {"name": "log", "vhost": "shop", "arguments": {"x-queue-type": "stream"}},
    ],
}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "broker.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def test_what_is_imported_can_be_exported(data: str, file: Path) -> None:
    imported = run.invoke(app, ["definitions", "import", data, str(file)])
    assert imported.exit_code == 0
    assert imported.stdout.splitlines() == [
        "imported: 2 vhosts, 1 queues",
        "note: queue 'log' in vhost 'shop': type stream is not supported, left out",
    ]
    exported = run.invoke(app, ["definitions", "export", data])
    assert exported.exit_code == 0
    assert [queue["name"] for queue in json.loads(exported.stdout)["queues"]] == ["q"]
    one = run.invoke(app, ["definitions", "export", data, "--vhost", "/"])
    assert json.loads(one.stdout)["queues"] == []


def test_an_import_tells_what_it_did_as_json(data: str, file: Path) -> None:
    imported = run.invoke(app, ["definitions", "import", data, str(file), "--json"])
    told = json.loads(imported.stdout)
    assert told["counts"] == {"vhosts": 2, "queues": 1}
    assert len(told["notes"]) == 1


def test_an_export_into_a_file_is_for_its_owner_only(data: str, file: Path, tmp_path: Path) -> None:
    run.invoke(app, ["definitions", "import", data, str(file)])
    output = tmp_path / "out.json"
    assert run.invoke(app, ["definitions", "export", data, "-o", str(output)]).exit_code == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert [vhost["name"] for vhost in json.loads(output.read_text())["vhosts"]] == ["/", "shop"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"{", "definitions.json:1: is not JSON"),
        (b"\xff", "definitions.json: is not JSON"),
        (b"[" * 100_000, "definitions.json: cannot be read"),
        (b"[]", "definitions are an object, not []"),
        (b'{"queues": [{"name": "q"}]}', "queues[0].vhost: is missing"),
    ],
)
def test_a_file_that_cannot_be_imported_is_status_1_and_no_traceback(
    data: str, file: Path, text: bytes, told: str
) -> None:
    file.write_bytes(text)
    result = run.invoke(app, ["definitions", "import", data, str(file)])
    assert result.exit_code == 1
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_files_that_are_not_there_are_told(data: str, file: Path) -> None:
    assert "no such file" in run.invoke(app, ["definitions", "export", data]).stderr
    missing = run.invoke(app, ["definitions", "import", data, f"{file}.no"])
    assert (missing.exit_code, "No such file" in missing.stderr) == (1, True)


def test_an_export_of_a_vhost_that_is_not_there_is_status_1(data: str, file: Path) -> None:
    run.invoke(app, ["definitions", "import", data, str(file)])
    result = run.invoke(app, ["definitions", "export", data, "--vhost", "nope"])
    assert (result.exit_code, result.stderr) == (1, "NOT_ALLOWED - vhost nope not found\n")
