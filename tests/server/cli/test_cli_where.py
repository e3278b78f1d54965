"""The broker of a command: the file of a running application, a file that is not open, and that of
a configuration."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_client.server.control import connected_socket, control_path, short_address
from tests.support.command_line import run, told

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def application(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running application that has the file at `path` open."""
    command = [sys.executable, "-m", "tests.server.cli.holding_program", str(path), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("running") / "app.db"
    with application(path):
        yield path
    assert sorted(each.name for each in path.parent.iterdir()) == ["app.db", "app.db.lock"]


def test_commands_reach_the_broker_of_a_running_application(running: Path) -> None:
    url = str(running)
    assert run(url, "publish", "q", input="1\n2\n").stdout == "2 confirmed\n"
    assert told(run(url, "peek", "q", "--count", "1", "--json"))["body"] == "1"
    assert told(run(url, "move", "q", "other", "--json"))["moved"] == 2
    assert told(run(f"embedded://{running}", "purge", "other", "--yes", "--json"))["purged"] == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_its_user_may_connect_to_the_control_socket() -> None:
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
        's.connect(sys.argv[1]); s.sendall(b\'{"do": "stats"}\\n\'); print(s.recv(100))'
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "app.db"
        control = Path(control_path(str(path)))
        with application(path):
            assert stat.S_IMODE(control.stat().st_mode) == 0o600
            refused = subprocess.run(
                [sys.executable, "-Sc", code, str(control)], capture_output=True, text=True
            )
            assert "PermissionError" in refused.stderr
            control.chmod(0o666)  # and users who bypass the mode are identified by the system
            dropped = subprocess.run(
                [sys.executable, "-Sc", code, str(control)], capture_output=True, text=True
            )
            assert (
                dropped.stdout == "b''\n"
                or "ConnectionReset" in dropped.stderr
                or "BrokenPipe" in dropped.stderr
            )


def test_a_killed_application_leaves_a_socket_that_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with application(path) as process:
        assert run(str(path), "publish", "q", input="1\n").exit_code == 0
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Path(control_path(str(path))).is_socket()
    assert run(str(path), "publish", "q", input="2\n").stdout == "1 confirmed\n"
    with application(path):
        assert told(run(str(path), "move", "q", "other", "--json"))["moved"] == 2
    assert not Path(control_path(str(path))).exists()


def test_a_file_that_is_not_open_is_opened_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with application(path):
        pass
    assert run(str(path), "publish", "q", input="1\n2\n").exit_code == 0
    assert told(run(str(path), "get", "q", "--json"))["body"] == "1"
    assert told(run(str(path), "move", "q", "other", "--json"))["moved"] == 1
    result = run(str(path), "get", "q", "--vhost", "nope")
    assert (result.exit_code, result.stderr) == (1, f"{path}: there is no vhost 'nope'\n")


def test_an_application_without_control_is_told_to_have_the_file(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with application(path, "no-control"):
        assert not Path(control_path(str(path))).exists()
        result = run(str(path), "get", "q")
    assert result.exit_code == 1
    assert "its process has no control socket" in result.stderr


@pytest.mark.parametrize(
    ("child_ends", "parent_is_killed"),
    [(True, False), (False, True)],
    ids=["child ends", "parent is killed"],
)
def test_a_forked_child_neither_removes_nor_holds_the_socket(
    tmp_path: Path, child_ends: bool, parent_is_killed: bool
) -> None:
    path = tmp_path / "app.db"
    url = str(path)
    with application(path, "fork-and-exit" if child_ends else "fork") as process:
        assert run(url, "publish", "q", input="1\n").stdout == "1 confirmed\n"
        assert told(run(url, "get", "q", "--json"))["body"] == "1"
        if parent_is_killed:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert connected_socket(url) is None  # at once: no process would answer
            assert run(url, "publish", "q", input="2\n").stdout == "1 confirmed\n"
    assert Path(control_path(url)).exists() == parent_is_killed


@pytest.mark.parametrize("name", ["a" * 40 + ".db", "b" * 200 + ".db"])
def test_a_long_path_has_a_control_socket_nevertheless(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    with application(folder / name):
        assert run(str(folder / name), "publish", "q", input="1\n").exit_code == 0
        assert connected_socket(str(folder / name)).close() is None  # type: ignore[union-attr]
    with short_address(control_path(str(folder / name))) as address:
        assert len(address) <= 107


def test_an_application_goes_on_where_no_socket_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    Path(control_path(str(path))).write_text("mine")
    with application(path):
        pass
    assert Path(control_path(str(path))).read_text() == "mine"


def test_a_configuration_names_the_broker(running: Path, tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(
        f"vhosts:\n  /:\n    connection: embedded://{running}\n  other:\n    connection: embedded://\n"
    )
    configured = ("--config", str(file))
    result = run("amqp://nobody.invalid", "publish", "q", *configured, "--vhost", "/", input="1\n")
    assert result.stdout == "1 confirmed\n", result.stderr
    run(str(running), "purge", "q", "--yes")
    for more, why in (
        ((), "name one of its vhosts with --vhost: /, other"),
        (("--vhost", "nope"), "has no vhost 'nope'; it has /, other"),
        (("--vhost", "other"), "in the memory of its program"),
    ):
        result = run("", "get", "q", *configured, *more)
        assert result.exit_code == 1
        assert why in result.stderr


def test_no_broker_named_is_wrong_usage() -> None:
    result = run("", "get", "q")
    assert result.exit_code == 2
    assert "--url or --config" in result.stderr
    missing = run("/nowhere/app.db", "get", "q")
    assert (missing.exit_code, missing.stderr) == (1, "/nowhere/app.db: there is no such file\n")


def test_a_client_that_says_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with contextlib.ExitStack() as stack:
        stack.enter_context(application(path))
        local = connected_socket(str(path))
        assert local is not None
        stack.callback(local.close)
        began = time.monotonic()
    assert time.monotonic() - began < 15


def test_plan_and_apply_reach_the_broker_of_a_running_application(
    running: Path, tmp_path: Path
) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(f"vhosts: {{/: {{connection: 'embedded://{running}', queues: [q, planned]}}}}")
    planned = told(run("", "plan", str(file), "--json"))
    changes = {(each["action"], each["kind"], each["name"]) for each in planned["changes"]}
    assert ("create", "queue", "planned") in changes
    assert ("left", "queue", "other") in changes
    assert run("", "apply", str(file), "--yes").exit_code == 0
    assert run("", "plan", str(file)).exit_code == 0
    assert run(str(running), "publish", "planned", input="1\n").stdout == "1 confirmed\n"


def test_definitions_of_a_running_application_are_exported(running: Path) -> None:
    result = run("", "definitions", "export", str(running))
    assert result.exit_code == 0, result.output
    names = {each["name"] for each in json.loads(result.stdout)["queues"]}
    assert {"q", "other"} <= names
    missing = run("", "definitions", "export", str(running), "--vhost", "nope")
    assert (missing.exit_code, "nope" in missing.stderr) == (1, True)


def test_users_and_vhosts_of_a_running_application_are_listed_and_not_changed(
    running: Path,
) -> None:
    assert json.loads(run("", "user", "list", str(running), "--json").stdout) == []
    assert json.loads(run("", "vhost", "list", str(running), "--json").stdout) == ["/"]
    for command in (("user", "delete"), ("vhost", "add")):
        result = run("", *command, str(running), "new")
        assert result.exit_code == 1
        assert "stop it first, or use its management API" in result.stderr
