"""``broker-client queues``, ``top``, ``pause`` and ``resume``."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import pty
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_client.cli.examinations import examine_management
from broker_client.cli.steering import ByManagement
from broker_client.cli.where import place_of
from broker_client.dashboard.api import Account, Answer, ManagementApi
from broker_client.dashboard.credentials import Credentials
from tests.server.cli.test_cli_where import application
from tests.support.certificates import Authority, Files
from tests.support.command_line import ChannelTo, run, told
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The file of a running application with the queues ``q`` and ``other``."""
    file = tmp_path_factory.mktemp("queues") / "app.db"
    with application(file):
        yield str(file)


def rows(url: str, *arguments: str) -> list[dict[str, Any]]:
    result = run(url, "queues", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_queues_are_shown_with_what_they_hold_and_sorted(path: str) -> None:
    run(path, "publish", "q", input="1\n2\n")
    assert [row["name"] for row in rows(path)] == ["other", "q"]
    first, second = rows(path, "--sort", "ready")
    assert (first["name"], first["ready"], first["deferred"], second["ready"]) == ("q", 2, 0, 0)
    assert first["oldest"] > 0
    shown = run(path, "queues").stdout
    assert "other" in shown
    assert run(path, "queues", "--sort", "nope").exit_code == 2
    no_vhost = run(path, "queues", "--vhost", "nope")
    assert (no_vhost.exit_code, no_vhost.stderr) == (1, f"{path}: there is no vhost 'nope'\n")
    run(path, "purge", "q", "--yes")


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(path: str) -> None:
    run(path, "publish", "q", input="1\n")
    assert told(run(path, "pause", "q", "--json")) == {"paused": "q"}
    assert "paused" in {row["state"] for row in rows(path)}
    assert run(path, "get", "q").stderr == "q is empty\n"
    assert run(path, "resume", "q").stdout == "q is resumed\n"
    assert told(run(path, "get", "q", "--json"))["body"] == "1"
    missing = run(path, "pause", "nope")
    assert missing.exit_code == 1
    assert "no queue 'nope'" in missing.stderr


def test_queues_of_a_file_that_is_not_open_are_shown_and_paused(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with application(path):
        pass
    assert run(str(path), "pause", "q").exit_code == 0
    assert {row["name"]: row["state"] for row in rows(str(path))}["q"] == "paused"
    result = run(str(path), "top")
    assert (result.exit_code, result.stderr.startswith("no process has the file open")) == (1, True)


def test_an_address_of_amqp_is_told_to_need_the_management_api() -> None:
    result = run("amqp://guest:secret@127.0.0.1:1", "queues")
    assert result.exit_code == 1
    assert "--management" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.rabbitmq
def test_queues_of_rabbitmq_come_from_its_management_api(rabbitmq: RabbitMQ) -> None:
    vhost = rabbitmq.make_vhost()
    api = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    definitions = ("--management", api, "--vhost", vhost)
    try:
        assert rows("", *definitions) == []
        paused = run("", "pause", "q", *definitions)
        assert (paused.exit_code, "cannot pause" in paused.stderr) == (1, True)
        wrong = api.replace("guest:guest", "guest:wrongpass")
        refused = run("", "queues", "--management", wrong)
        assert (refused.exit_code, "wrongpass" in refused.stderr) == (1, False)
        assert "401" in refused.stderr
        unknown = run("", "queues", "--management", api, "--vhost", "nope")
        assert unknown.exit_code == 1
        assert unknown.stderr.endswith(": there is no vhost 'nope'\n")
    finally:
        rabbitmq.delete_vhost(vhost)


def test_the_management_api_is_not_asked_through_a_proxy_of_the_environment(
    rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # it would get the password
    api = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    result = run("", "queues", "--management", api)
    assert result.exit_code == 0, result.stderr


@contextlib.contextmanager
def other_program(status: int, body: bytes, certificate: Files | None = None) -> Iterator[str]:
    """The address of a program that is no management API, with a login: every path is `body`.

    With a `certificate` it speaks TLS.
    """

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            self.send_header("Date", "today")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        scheme = "http"
        if certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"{scheme}://guest:s3cret@127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>Log in</html>", "the answer is not JSON: is this a management API?"),
        (200, b"\xff\xfe", "the answer is not JSON: is this a management API?"),
        (200, b"[" * 100_000, "the answer is not JSON: is this a management API?"),
        (200, b'{"status": "ok"}', "{not it}: is this a management API?"),
        (200, b'[{"name": "q"}, 1]', "{not it}: is this a management API?"),
        (200, b"null", "{not it}: is this a management API?"),
        (302, b"", "302 Found"),
        (502, b"<html>Bad gateway</html>", "502 Bad Gateway"),
        (400, b'{"reason": "\\u001b[31mtwo\\nlines"}', "400 [31mtwo lines"),
    ],
)
def test_another_program_behind_management_is_told_in_one_line(
    path: str, status: int, body: bytes, told: str
) -> None:
    with other_program(status, body) as api:
        for command, not_it in (
            (["queues"], "the answer is not a list of queues"),
            (["top", "--count", "1"], "the answer is not a list of queues"),
            (["graph"], "the answer is not a list of exchanges"),
            (["tail", "q"], "the answer is not a list of exchanges"),
            (["pause", "q"], "the answer has no management_version"),
        ):
            result = run(path, *command, "--management", api)
            shown = api.replace("guest:s3cret@", "")
            line = f"{shown}: {told.replace('{not it}', not_it)}\n"
            assert (result.exit_code, result.stderr) == (1, line), command
        *_, last = examine_management(place_of(path), ByManagement(api, None))
        assert (last.check, last.verdict) == ("management", "problem")


def test_management_over_tls_is_trusted_by_an_authority_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "our ca")
    with other_program(200, b"[]", authority.sign("server", "127.0.0.1")) as api:
        refused = run("", "queues", "--management", api, "--json")
        plain = run("", "queues", "--management", api.replace("https", "http"), "--json")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        trusted = run("", "queues", "--management", api, "--json")
        shown = asyncio.run(_seen_by_a_dashboard(api.replace("guest:s3cret@", "")))
    assert refused.exit_code == plain.exit_code == 1
    assert "its certificate is not trusted" in refused.stderr
    assert "SSL_CERT_FILE" in refused.stderr
    assert (trusted.exit_code, trusted.output) == (0, "")
    assert (shown.status, shown.body) == (200, b"[]")


async def _seen_by_a_dashboard(url: str) -> Answer:
    api = ManagementApi.over_http(url)
    try:
        return await api.request("GET", "queues", Account(Credentials("guest", "s3cret")))
    finally:
        await api.close()


def test_an_https_address_of_a_server_without_tls_is_told() -> None:
    with other_program(200, b"[]") as api:
        result = run("", "queues", "--management", api.replace("http", "https"))
    assert "does not use TLS: is it http://?" in result.stderr


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    client, _ = listener.accept()
    with client:
        client.recv(65_536)
        client.sendall(answer)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"AMQP\x00\x00\x09\x01", "an AMQP broker answers there"),
        (b"-ERR \x1b[31munknown\x07\r\n", "does not speak HTTP: -ERR [31munknown"),
    ],
)
def test_another_protocol_at_the_address_of_the_api_is_told_without_control_characters(
    answer: bytes, told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, answer))
        thread.start()
        port = listener.getsockname()[1]
        result = run("", "queues", "--management", f"http://guest:guest@127.0.0.1:{port}")
        thread.join()
    assert told in result.stderr
    assert result.stderr.rstrip("\n").isprintable()


def test_queues_of_a_server_tell_the_age_of_what_waits() -> None:
    with Served("--http", "127.0.0.1:0") as server:
        api = server.addresses[-1].replace("//", "//guest:guest@")
        url = server.url()
        missing = run("", "pause", "nope", "--management", api)
        assert missing.exit_code == 1
        assert missing.stderr.endswith(": there is no queue 'nope' in vhost '/'\n")
        asyncio.run(_declare(url, "waits", "empty"))
        run(url, "publish", "waits", input="1\n")
        empty, waits = rows("", "--management", api)
        assert (empty["oldest"], waits["ready"]) == (None, 1)
        assert 0 < waits["oldest"] < 60


async def _declare(url: str, *queues: str) -> None:
    async with ChannelTo(url) as channel:
        for queue in queues:
            await channel.queue_declare(queue)


def test_top_without_a_terminal_prints_each_look(path: str) -> None:
    result = run(path, "top", "--count", "2", "--interval", "0.1", "--json")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["time"] < second["time"]
    assert {each["name"] for each in second["queues"]} == {"q", "other"}
    assert second["queues"][0]["rates"] == {"published": 0.0, "delivered": 0.0, "acked": 0.0}


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "110", "LINES": "30"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker_client", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            # In the background of a shell SIGINT is ignored, also by children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Read until `text` was shown; earlier output is dropped."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.2)[0]:
                self.shown += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        self.shown = self.shown.partition(text)[2]

    def wait(self) -> int:
        """Read until the program has ended, which may wait for a reader; returns its status."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):  # Linux: EIO once the other end is closed
                    self.shown += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        return self.process.returncode

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(path: str) -> Iterator[Terminal]:
    """Shows ``top`` of the application."""
    made = Terminal("top", "--url", path, "--interval", "0.3")
    yield made
    made.close()


def test_top_shows_the_queues_live_and_obeys_keys(terminal: Terminal, path: str) -> None:
    terminal.wait_for("2 queues by ready")
    run(path, "publish", "other", input="1\n" * 1_234)
    terminal.wait_for("1,234")
    terminal.press("n")
    terminal.wait_for("2 queues by name")
    terminal.press("q")
    assert terminal.wait() == 0
    run(path, "purge", "other", "--yes")


def test_progress_is_one_line_that_is_cleared_at_the_end(path: str, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        files.append(str(tmp_path / f"{number}"))
        Path(files[-1]).write_text("x")
    made = Terminal("publish", "other", *files, "--url", path)
    try:
        made.wait_for("\r1 of 3 confirmed")
        made.wait_for("\r" + " " * len("1 of 3 confirmed") + "\r")
        made.wait_for("3 confirmed\r\n")
        assert made.wait() == 0
    finally:
        made.close()
    run(path, "purge", "other", "--yes")


def test_top_ends_with_ctrl_c_and_without_a_traceback(terminal: Terminal) -> None:
    terminal.wait_for("2 queues by ready")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.shown


def test_graph_of_a_running_application_has_its_queues_with_their_messages(path: str) -> None:
    run(path, "publish", "q", input="1\n2\n")
    drawn = told(run(path, "graph", "--json"))
    assert {each["name"]: each["ready"] for each in drawn["nodes"] if each["kind"] == "queue"} == {
        "q": 2,
        "other": 0,
    }
    assert "q<br/>classic, 2 messages" in run(path, "graph").stdout
    nowhere = run(path, "graph", "--vhost", "nope")
    assert (nowhere.exit_code, nowhere.stderr) == (1, "there is no vhost 'nope'\n")
    run(path, "purge", "q", "--yes")
