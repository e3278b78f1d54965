"""`broker-client import-rascal`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.config.loader import load_config

DOCUMENT = {
    "vhosts": {
        "/": {
            "connection": "amqp://app:hunter2@h/",
            "exchanges": ["dlx"],
            "queues": {"q": {"options": {"deadLetterExchange": "dlx"}}},
            "subscriptions": {"s": {"queue": "q", "closeTimeout": 1500, "handler": "x.js"}},
        }
    }
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    Path("rascal.json").write_text(json.dumps(DOCUMENT))
    return CliRunner()


def test_result_is_printed_and_loads(run: CliRunner) -> None:
    result = run.invoke(app, ["import-rascal", "rascal.json"])
    assert (result.exit_code, result.stderr) == (0, "")
    Path("app.yaml").write_text(result.stdout)
    assert load_config("app.yaml").subscriptions["s"].close_timeout == 1.5
    assert "# left out: handler: handlers are given to subscribe" in result.stdout


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_result_is_written_to_a_file(run: CliRunner, option: str) -> None:
    result = run.invoke(app, ["import-rascal", "rascal.json", option, "app.yaml"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert load_config("app.yaml").vhosts["/"].connections[0].hostname == "h"


def test_what_rabbitmq_4_refuses_is_warned_of(run: CliRunner) -> None:
    arguments = {"x-queue-type": "quorum", "x-max-priority": 5}
    options = {"deadLetterExchange": "dlx", "arguments": arguments}
    subscription = {"queue": "q", "channelPrefetch": 5}
    vhost = {**DOCUMENT["vhosts"]["/"], "queues": {"q": {"options": options}}}
    Path("rascal.json").write_text(
        json.dumps({"vhosts": {"/": {**vhost, "subscriptions": {"s": subscription}}}})
    )
    result = run.invoke(app, ["import-rascal", "rascal.json", "-o", "app.yaml"])
    assert result.exit_code == 0
    first, second = sorted(result.stderr.splitlines())
    assert first.startswith("warning: app.yaml:")
    assert "x-max-priority is refused for quorum queues" in first + second
    assert "channel_prefetch: is an error on RabbitMQ 4.3" in first + second


def test_mistakes_of_the_original_are_told_of_the_result(run: CliRunner) -> None:
    wrong = {"vhosts": {"/": {"publications": {"p": {"queue": "q"}}}}}
    Path("rascal.json").write_text(json.dumps(wrong))
    result = run.invoke(app, ["import-rascal", "rascal.json", "-o", "app.yaml"])
    assert result.exit_code == 1
    assert result.stderr.startswith("app.yaml:")
    assert "unknown queue 'q'" in result.stderr
    assert Path("app.yaml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n  vhosts: {}}", "rascal.json:2: not valid JSON: "),
        ("[]", "rascal.json: must be an object with the key 'vhosts'"),
        ("{}", "result:1: vhosts: No vhosts specified"),
        (None, "rascal.json: cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_configuration_is_refused_in_a_line(
    run: CliRunner, text: str | None, message: str
) -> None:
    if text is None:
        Path("rascal.json").unlink()
    else:
        Path("rascal.json").write_text(text)
    result = run.invoke(app, ["import-rascal", "rascal.json"])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(message)


def test_file_that_cannot_be_written_is_reported(run: CliRunner) -> None:
    result = run.invoke(app, ["import-rascal", "rascal.json", "-o", "none/app.yaml"])
    assert result.exit_code == 1
    assert result.stderr == "none/app.yaml: cannot be written: No such file or directory\n"


def test_javascript_module_is_told_how_it_becomes_json(run: CliRunner) -> None:
    Path("config.js").write_text("module.exports = {vhosts: {}}\n")
    result = run.invoke(app, ["import-rascal", "config.js"])
    assert result.exit_code == 1
    assert """node -p 'JSON.stringify(require("./config.js"))' > rascal.json""" in result.stderr
