"""``broker-client user`` and ``vhost``, on a file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker_client.cli.main import app
from broker_client.core.access import Permission
from broker_client.node.making import make_node
from broker_client.store.lock import FileLock
from tests.support.files import a_file


def run(*arguments: str, input: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, input=input)
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "broker.db")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROKER_CLIENT_PASSWORD", raising=False)


def users(path: str) -> list[dict[str, Any]]:
    status, output = run("user", "list", path, "--json")
    assert status == 0, output
    listed: list[dict[str, Any]] = json.loads(output)
    return listed


async def logs_in(path: str, name: str, password: str) -> bool:
    node = make_node(path, durable=True)
    await node.recover()
    try:
        return node.access.authenticate(name, password) is not None
    finally:
        await node.close()


# --------------------------------------------------------------------------- users


async def check_password(path: str, name: str, password: str) -> None:
    assert await logs_in(path, name, password)
    assert not await logs_in(path, name, password + "x")


def in_loop(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_added_user_logs_in_with_the_password_of_the_file(path: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\nsecond line\n")
    status, output = run("user", "add", path, "ann", "--password-file", str(secret))
    assert (status, "from a file" in output) == (0, False)
    in_loop(check_password(path, "ann", "from a file"))


def test_added_user_logs_in_with_the_password_of_the_environment(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CLIENT_PASSWORD", "from outside")
    assert run("user", "add", path, "ann", "--tag", "monitoring", "--tag", "own")[0] == 0
    in_loop(check_password(path, "ann", "from outside"))
    assert users(path)[0]["tags"] == ["monitoring", "own"]


def test_password_comes_from_standard_input_where_asked(path: str) -> None:
    assert run("user", "add", path, "ann", "--password-file", "-", input="piped\n")[0] == 0
    in_loop(check_password(path, "ann", "piped"))


def test_password_is_no_argument(path: str) -> None:
    status, output = run("user", "add", path, "ann", "--password", "secret")
    assert status == 2
    assert "No such option" in output
    status, output = run("user", "add", path, "ann", "secret")
    assert status == 2
    assert not os.path.exists(path)


def test_no_password_without_a_terminal_is_reported(path: str) -> None:
    status, output = run("user", "add", path, "ann")
    assert status == 1
    assert "BROKER_CLIENT_PASSWORD" in output
    assert not os.path.exists(path)


def test_empty_password_is_refused(path: str) -> None:
    status, output = run("user", "add", path, "ann", "--password-file", "-", input="\n")
    assert status == 1
    assert "--no-password" in output


def test_user_without_a_password_cannot_log_in(path: str) -> None:
    assert run("user", "add", path, "ann", "--no-password")[0] == 0
    assert not in_loop(logs_in(path, "ann", ""))


def test_user_that_is_there_keeps_its_password_at_a_second_add(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CLIENT_PASSWORD", "first")
    run("user", "add", path, "ann")
    monkeypatch.setenv("BROKER_CLIENT_PASSWORD", "second")
    status, output = run("user", "add", path, "ann")
    assert status == 1
    assert "already" in output
    in_loop(check_password(path, "ann", "first"))


def test_passwd_changes_the_password_and_nothing_else(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CLIENT_PASSWORD", "first")
    run("user", "add", path, "ann", "--tag", "management")
    run("user", "permit", path, "ann", "--all")
    before = users(path)
    monkeypatch.setenv("BROKER_CLIENT_PASSWORD", "second")
    assert run("user", "passwd", path, "ann")[0] == 0
    in_loop(check_password(path, "ann", "second"))
    assert users(path) == before


def test_unknown_user_is_reported_before_a_password_is_asked_for(path: str) -> None:
    run("user", "add", path, "ann", "--no-password")
    for arguments in (("passwd", path, "anna"), ("delete", path, "anna"), ("permit", path, "anna")):
        status, output = run("user", *arguments)
        assert status == 1
        assert "unknown user 'anna'; did you mean 'ann'?" in output


def test_nothing_is_asked_about_what_cannot_be_done(path: str) -> None:
    run("user", "add", path, "ann", "--no-password")
    status, output = run("user", "add", path, "ann")
    assert status == 1
    assert "there is a user 'ann' already" in output
    status, output = run("vhost", "delete", path, "shop", input="y\n")
    assert status == 1
    assert "there is no vhost 'shop'" in output
    assert "with everything in it?" not in output


def test_deleted_user_is_gone_and_the_last_one_stays(path: str) -> None:
    run("user", "add", path, "ann", "--no-password")
    run("user", "add", path, "bob", "--no-password")
    assert run("user", "delete", path, "ann")[0] == 0
    assert [each["name"] for each in users(path)] == ["bob"]
    status, output = run("user", "delete", path, "bob")
    assert status == 1
    assert "the last one" in output


def test_permissions_are_kept_as_given(path: str) -> None:
    run("user", "add", path, "ann", "--no-password")
    run("vhost", "add", path, "shop")
    permit = ("user", "permit", path, "ann", "--vhost", "shop")
    assert run(*permit, "--configure", "^c", "--write", "^w")[0] == 0
    assert run(*permit, "--topic", "amq.topic", "--write", "^{username}", "--read", ".*")[0] == 0
    (ann,) = users(path)
    assert ann["permissions"] == [{"vhost": "shop", "configure": "^c", "write": "^w", "read": ""}]
    assert ann["topic_permissions"] == [
        {"vhost": "shop", "exchange": "amq.topic", "write": "^{username}", "read": ".*"}
    ]
    status, output = run("user", "list", path)
    assert status == 0
    assert "^{username}" in output
    assert run(*permit, "--clear")[0] == 0
    assert run(*permit, "--topic", "amq.topic", "--clear")[0] == 0
    assert users(path)[0]["permissions"] == users(path)[0]["topic_permissions"] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--write", "("], "is invalid"),
        (["--vhost", "shpo"], "unknown vhost 'shpo'"),
        (["--all", "--write", "x"], "cannot be combined with other"),
        (["--clear", "--write", "x"], "cannot be combined with patterns"),
        (["--topic", "t", "--configure", "x"], "not configured"),
    ],
)
def test_permissions_that_make_no_sense_are_refused(
    path: str, arguments: list[str], told: str
) -> None:
    run("user", "add", path, "ann", "--no-password")
    status, output = run("user", "permit", path, "ann", *arguments)
    assert status in (1, 2)
    assert told in output
    assert users(path)[0]["permissions"] == []


def test_file_in_use_is_reported_with_its_holder(path: str) -> None:
    a_file(Path(path))
    lock = FileLock(path)
    lock.acquire()
    try:
        status, output = run("user", "list", path)
    finally:
        lock.release()
    assert status == 1
    assert "in use by" in output
    assert "management API" in output


@pytest.mark.parametrize("command", ["list", "delete", "passwd", "permit"])
def test_missing_file_is_reported_and_not_made(path: str, command: str) -> None:
    status, output = run("user", command, path, *([] if command == "list" else ["ann"]))
    assert status == 1
    assert "there is no such file" in output
    assert not os.path.exists(path)


def test_password_is_asked_for_in_a_terminal_and_not_shown(path: str) -> None:
    pty = pytest.importorskip("pty")
    main, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "broker_client", "user", "add", path, "ann"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        seen = b""
        for question in (b"Password of ann: ", b"Repeat for confirmation: "):
            while question not in seen:
                seen += os.read(main, 1024)
            os.write(main, b"typed in\n")
        try:
            while chunk := os.read(main, 1024):
                seen += chunk
        except OSError:  # Linux: the other end is closed
            pass
        assert process.wait(20) == 0
    os.close(main)
    assert b"typed in" not in seen
    in_loop(check_password(path, "ann", "typed in"))


# --------------------------------------------------------------------------- vhosts


def test_vhosts_are_added_listed_and_deleted(path: str) -> None:
    assert run("vhost", "add", path, "shop")[0] == 0
    assert run("vhost", "list", path)[1].split() == ["/", "shop"]
    run("user", "add", path, "ann", "--no-password")
    run("user", "permit", path, "ann", "--vhost", "shop", "--all")
    assert run("vhost", "delete", path, "shop", input="n\n")[0] == 1
    assert json.loads(run("vhost", "list", path, "--json")[1]) == ["/", "shop"]
    assert run("vhost", "delete", path, "shop", "--yes")[0] == 0
    assert run("vhost", "list", path)[1].split() == ["/"]
    assert users(path)[0]["permissions"] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "/"], "already"),
        (["add", ""], "must not be empty"),
        (["delete", "x"], "no vhost 'x'"),
    ],
)
def test_vhost_that_cannot_be_is_reported(path: str, arguments: list[str], told: str) -> None:
    a_file(Path(path))
    more = ["--yes"] if arguments[0] == "delete" else []
    status, output = run("vhost", arguments[0], path, *arguments[1:], *more)
    assert status == 1
    assert told in output


def test_vhost_is_added_with_what_describes_it(path: str) -> None:
    options = ("--description", "of the shop", "--tags", "a, b", "--default-queue-type", "quorum")
    assert run("vhost", "add", path, "shop", *options)[0] == 0
    document = json.loads(run("definitions", "export", path, "--vhost", "shop")[1])
    assert document["metadata"] == {
        "description": "of the shop",
        "tags": ["a", "b"],
        "default_queue_type": "quorum",
    }
    status, output = run("vhost", "add", path, "x", "--default-queue-type", "stream")
    assert (status, "'classic'" in output) == (2, True)


def test_deleted_vhost_takes_its_messages_along(path: str) -> None:
    a_file(Path(path), range(1, 5))
    assert run("vhost", "delete", path, "/", "--yes")[0] == 0
    assert json.loads(run("stats", path, "--json")[1])["messages"] == 0


def test_permissions_from_the_command_count(path: str) -> None:
    run("user", "add", path, "ann", "--no-password")
    run("user", "permit", path, "ann", "--read", "^orders$")

    async def may(name: str) -> bool:
        node = make_node(path, durable=True)
        await node.recover()
        try:
            return node.access.may("ann", "/", Permission.READ, name)
        finally:
            await node.close()

    assert in_loop(may("orders"))
    assert not in_loop(may("orders2"))
