"""``broker-client publish``, ``get``, ``peek``, ``purge``, on a server of ours and on RabbitMQ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import bodies, drained, run, told


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
        ("{", "line 2: is not JSON"),
        ("[]", "line 2: is not an object with a body"),
        ('{"body": 1, "nope": 2}', "line 2: 'nope' is not one of"),
        ('{"body": 1, "headers": 2}', "line 2: headers and properties are objects"),
        ('{"body_base64": "?"}', "line 2: body_base64 is not base64"),
        (
            '{"body": 1, "properties": {"priority": "x"}}',
            "line 2: property 'priority' is not one of",
        ),
    ],
)
def test_a_wrong_line_is_reported_with_its_number_and_what_was_confirmed_before(
    url: str, line: str, why: str
) -> None:
    result = run(url, "publish", "q", "--json-lines", input=f'{{"body": "good"}}\n{line}\n')
    assert result.exit_code == 1
    assert why in result.stderr
    assert "Traceback" not in result.stderr
    assert len(bodies(url, "q")) == int(result.stdout.split()[0])


def test_what_no_queue_takes_is_reported_and_status_1(url: str) -> None:
    result = run(url, "publish", "nowhere", input="a\nb\n")
    assert (result.exit_code, result.stdout) == (1, "0 confirmed, 2 refused\n")
    assert "message 2: no queue takes it (exchange '', routing key 'nowhere')" in result.stderr


def test_an_exchange_that_is_not_there_is_reported_and_status_1(url: str) -> None:
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
    more = {"move": ["q"]}.get(command, [])  # purge asks no question about a missing queue
    result = run(url, command, "nope", *more)
    assert result.exit_code == 1
    assert "no queue 'nope'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_purge_drops_what_is_ready(url: str) -> None:
    run(url, "publish", "q", input="1\n2\n")
    assert run(url, "purge", "q", input="n\n").exit_code == 1
    assert told(run(url, "purge", "q", "--yes", "--json")) == {"purged": 2}
    assert bodies(url, "q") == []


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("embedded://", "which commands cannot reach"),
        ("http://host", "--url:"),
        ("amqp://guest:guest@127.0.0.1:1/", "127.0.0.1:1"),
        ("amqp://guest:guest@127.0.0.1/?heartbeat=5", "a query is not allowed"),
    ],
)
def test_an_address_that_cannot_be_used_is_reported_without_a_traceback(
    address: str, why: str
) -> None:
    result = run(address, "get", "q")
    assert result.exit_code == 1
    assert why in result.stderr
    assert "Traceback" not in result.stderr
    assert "guest:guest" not in result.stderr
