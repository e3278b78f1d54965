"""`broker-client check`, `schema` and `--version`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.config.schema import config_schema

CONFIG = Path(__file__).parents[3] / "config"

FULL = """
vhosts:
  /:
    connections: ["amqp://app:hunter2@one/", "amqp://app:hunter2@two/"]
    exchanges: [orders, {name: audit, type: fanout, options: {durable: false}}]
    queues:
      fulfil:
        purge: true
        options: {message_ttl: 10s, exclusive: true, dead_letter_exchange: audit}
    bindings: ["orders[order.#, rush.*] -> fulfil"]
    publications:
      placed: {exchange: orders, routing_key: order.placed}
      direct: {queue: fulfil, confirm: false}
    subscriptions:
      fulfil: {queue: fulfil, recovery: patient}
      plain: {queue: fulfil, prefetch: 0}
recovery:
  patient:
    - {strategy: republish, defer: 500ms, attempts: 3}
    - {strategy: forward, publication: direct}
    - {strategy: nack, requeue: true}
shovels: [fulfil -> placed]
"""

DOUBTFUL = """
vhosts:
  /:
    queues: [orders]
    subscriptions: {orders: {queue: orders}}
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    # Wide enough that no cell is folded.
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner()


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows in `text`."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


FULFIL = "durable, exclusive, purged, x-message-ttl=10000, x-dead-letter-exchange=audit"


def test_check_of_a_good_file_shows_what_it_declares(run: CliRunner) -> None:
    Path("app.yaml").write_text(FULL)
    result = run.invoke(app, ["check", "app.yaml"])

    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.endswith("app.yaml: ok\n")
    assert rows(result.stdout) == [
        ["/", "amqp://app:***@one:5672/"],
        ["", "amqp://app:***@two:5672/"],
        ["/", "orders", "topic", "durable"],
        ["/", "audit", "fanout", "transient"],
        ["/", "fulfil", FULFIL],
        ["/", "orders", "order.#, rush.*", "fulfil"],
        ["placed", "/", "exchange orders", "order.placed", "confirmed"],
        ["direct", "/", "queue fulfil", "", "unconfirmed"],
        [
            "fulfil",
            "/",
            "fulfil",
            "10",
            "republish after 0.5s, 3 times, then forward to direct, then nack with requeue",
        ],
        ["plain", "/", "fulfil", "no limit", "requeue, deferred"],
        ["fulfil -> placed", "fulfil", "placed"],
    ]
    assert "hunter2" not in result.stdout


def test_check_prints_warnings_behind_the_tables_and_passes(run: CliRunner) -> None:
    Path("app.yaml").write_text(DOUBTFUL)
    result = run.invoke(app, ["check", "app.yaml"])

    assert result.exit_code == 0
    assert result.stderr == ""
    *tables, warning, verdict = result.stdout.splitlines()
    assert tables[-1].startswith("└")
    assert warning.startswith("warning: app.yaml:4: vhosts./.queues.orders: has no dead-letter ex")
    assert verdict == "app.yaml: ok, with 1 warning"


@pytest.mark.parametrize(("text", "status"), [(DOUBTFUL, 1), (FULL, 0)])
def test_strict_check_fails_where_there_is_a_warning(
    run: CliRunner, text: str, status: int
) -> None:
    Path("app.yaml").write_text(text)
    assert run.invoke(app, ["check", "--strict", "app.yaml"]).exit_code == status


def test_check_of_a_bad_file_prints_every_problem_and_fails(run: CliRunner) -> None:
    Path("app.yaml").write_text("vhosts:\n  /:\n    queus: []\n    concurrency: no\n")
    result = run.invoke(app, ["check", "app.yaml"])

    assert result.exit_code == 1
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("app.yaml:3: vhosts./.queus: unknown key (did you mean 'queues'?")
    assert second.startswith("app.yaml:4: vhosts./.concurrency: must be")


def test_check_of_a_missing_file_fails_in_one_line(run: CliRunner) -> None:
    result = run.invoke(app, ["check", "none.yaml"])
    assert result.exit_code == 1
    assert result.stderr == "none.yaml: cannot be read: No such file or directory\n"


def test_check_of_several_files_tells_of_each_and_fails_where_one_is_bad(run: CliRunner) -> None:
    Path("good.yaml").write_text(FULL)
    Path("doubtful.yaml").write_text(DOUBTFUL)
    Path("bad.yaml").write_text("vhosts:\n  /:\n    queus: []\n")
    result = run.invoke(app, ["check", "bad.yaml", "good.yaml", "none.yaml", "doubtful.yaml"])
    assert result.exit_code == 1
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [
        "bad.yaml:3",
        "none.yaml",
    ]
    good, warning, verdict = result.stdout.splitlines()
    assert (good, verdict) == ("good.yaml: ok", "doubtful.yaml: ok, with 1 warning")
    assert warning.startswith("warning: doubtful.yaml:4: ")


def test_check_as_json_tells_each_problem_with_its_place(run: CliRunner) -> None:
    Path("bad.yaml").write_text("vhosts:\n  /:\n    queus: []\n")
    Path("doubtful.yaml").write_text(DOUBTFUL)
    result = run.invoke(app, ["check", "--json", "bad.yaml", "doubtful.yaml"])
    bad, doubtful = map(json.loads, result.stdout.splitlines())
    [problem] = bad["problems"]
    assert (result.exit_code, result.stderr) == (1, "")
    assert (bad["ok"], problem["file"], problem["line"]) == (False, "bad.yaml", 3)
    assert problem["path"] == "vhosts./.queus"
    assert problem["message"].startswith("unknown key")
    assert (doubtful["ok"], len(doubtful["warnings"])) == (True, 1)
    assert run.invoke(app, ["check", "--json", "--strict", "doubtful.yaml"]).exit_code == 1


def test_check_without_a_file_is_a_usage_error(run: CliRunner) -> None:
    assert run.invoke(app, ["check"]).exit_code == 2


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.name)
def test_check_likes_the_ready_made_files(run: CliRunner, path: Path) -> None:
    assert run.invoke(app, ["check", "--strict", str(path)]).exit_code == 0


def test_schema_is_printed_as_json(run: CliRunner) -> None:
    result = run.invoke(app, ["schema"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == config_schema()


def test_version_is_printed(run: CliRunner) -> None:
    result = run.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("broker-client ")


def test_module_runs_as_a_command() -> None:
    root = CONFIG.parent
    done = subprocess.run(
        [sys.executable, "-m", "broker_client", "check", "config/demo.yaml"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("config/demo.yaml: ok\n")


def test_configuration_of_rascal_is_recognised(run: CliRunner) -> None:
    document = {"vhosts": {"/": {"queues": {"q": {"options": {"messageTtl": 60000}}}}}}
    document["vhosts"]["/"]["connectionStrategy"] = "fixed"  # type: ignore[assignment]
    Path("rascal.json").write_text(json.dumps(document))
    result = run.invoke(app, ["check", "rascal.json"])
    assert result.exit_code == 1
    assert "broker-client import-rascal rascal.json -o app.yaml converts it" in result.stderr


def test_one_slip_is_not_taken_for_a_configuration_of_rascal(run: CliRunner) -> None:
    Path("app.yaml").write_text("vhosts: {/: {connectionStrategy: fixed}}")
    assert "import-rascal" not in run.invoke(app, ["check", "app.yaml"]).stderr
