"""A private RabbitMQ: loopback ports and a data folder of its own, ended by its own process id.

It has its own node name, cookie, name server (epmd) and ports, so it does not interfere with the
packaged service or another test run. RABBITMQ in the environment picks the version: see
`tests.support.rabbitmq_installed`.

``python -m tests.support.rabbitmq run`` runs one in the foreground and prints its URL;
``versions`` prints which there are, oldest first.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote
from uuid import uuid4

from tests.support.own_server import OwnServer, free_port, url_of_guest
from tests.support.rabbitmq_installed import Installed, NoSuchRabbitMQError, chosen, installed

START_TIMEOUT = 150.0
STOP_TIMEOUT = 30.0
_LOG_TAIL_LINES = 40
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"

# The kernel ends a child whose parent *thread* is gone (see `_tied_to_us`), so children are
# started from one thread that lives as long as the process.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rabbitmq-spawner")


class RabbitMQError(Exception):
    """The private RabbitMQ failed."""


class RabbitMQ(OwnServer):
    """One RabbitMQ node, with the management plugin.

    `start`, `stop` and `kill` may follow each other any number of times: ports and data stay.
    `close` ends it for good and removes the data. All methods block; from a coroutine call them
    through `asyncio.to_thread`.

    Args:
        program: which RabbitMQ; `chosen()` by default.
        stats_interval: seconds between two refreshes of the counts that `queue` and `connections`
            answer. RabbitMQ's own default is 5.
        settings: further lines of rabbitmq.conf.
        plugins: to be enabled besides management.
        cookie: shared by the nodes of a cluster; by default a new one.
        epmd_port: of the name server of another node, which must run; this node starts its own
            where it is left out.
    """

    def __init__(
        self,
        program: Installed | None = None,
        *,
        stats_interval: float = 0.25,
        settings: Sequence[str] = (),
        plugins: Sequence[str] = (),
        cookie: str | None = None,
        epmd_port: int | None = None,
    ) -> None:
        program = program or chosen()
        if program is None:
            raise RabbitMQError("rabbitmq-server is not installed; see scripts/install-servers")
        self._program = program
        # A server in another root shares only /tmp with us.
        self._folder = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir="/tmp"))
        self.node_name = f"test-{uuid4().hex[:12]}@localhost"
        self._cookie = cookie or uuid4().hex
        self._starts_epmd = epmd_port is None
        self.epmd_port, self._dist_port = epmd_port or free_port(), free_port()
        self.port, self.management_port = free_port(), free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._write_files(stats_interval, settings, plugins)

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "down"
        return f"<RabbitMQ {self._program} 127.0.0.1:{self.port} {state}>"

    @property
    def version(self) -> tuple[int, ...]:
        """As (3, 10, 8)."""
        return self._program.version

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the Erlang machine that is the server."""
        if self._server is None:
            raise RabbitMQError("it is not running")
        return self._server.pid

    def url(self, vhost: str = "/") -> str:
        """The address of `vhost`, with the login of the default user."""
        return url_of_guest(self.port, vhost)

    # ------------------------------------------------------------------ life

    def start(self, *, timeout: float = START_TIMEOUT) -> None:
        """Start it, over the data of the last run, and wait until it serves.

        Raises:
            RabbitMQError: it ended, or did not answer within `timeout` seconds.
        """
        if self.is_running:
            return
        if self._starts_epmd and (self._epmd is None or self._epmd.poll() is not None):
            self._epmd = self._spawn(self._program.name_server(self.epmd_port), "epmd.log")
            self._wait_for("the name server", self._epmd, lambda: _listens(self.epmd_port), timeout)
        self._server = self._spawn(self._program.command("rabbitmq-server"), "console.log")
        try:
            self._wait_for("AMQP", self._server, lambda: _speaks_amqp(self.port), timeout)
            self._wait_for("management", self._server, self._management_answers, timeout)
        except BaseException:
            self.kill()
            raise

    def become(self, program: Installed) -> None:
        """Use another RabbitMQ with the same data from the next `start` on."""
        assert not self.is_running, "stop it first"
        self._program = program

    def stop(self) -> None:
        """Shut it down in order: queues are flushed, clients get connection.close."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a power cut would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspend it (SIGSTOP) until `resume`: its connections stay open and it does not answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End everything that was started and remove the data. May be called more than once."""
        self._end(signal.SIGKILL)
        if self._epmd is not None:
            _finish(self._epmd, signal.SIGKILL)
            self._epmd = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._server is not None:
            _finish(self._server, number)
            self._server = None

    # ------------------------------------------------------------------ what tests ask of it

    def ctl(self, *args: str) -> str:
        """Run `rabbitmqctl`, which takes about a second; returns what it printed."""
        command = self._program.command("rabbitmqctl", "--quiet", *args)
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            raise RabbitMQError(f"rabbitmqctl {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def make_vhost(self, **settings: Any) -> str:
        """Make a vhost nobody has used, with these settings; returns its name."""
        name = f"v-{uuid4().hex[:12]}"
        self._request("PUT", f"vhosts/{name}", settings)
        self.permit("guest", name)
        return name

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost; its connections are closed by the server."""
        self._request("DELETE", f"vhosts/{quote(name, safe='')}")

    def set_user(self, name: str, password: str) -> None:
        """Create a user without permissions, or change its password."""
        self._request("PUT", f"users/{name}", {"password": password, "tags": ""})

    def delete_user(self, name: str) -> None:
        self._request("DELETE", f"users/{name}")

    def permit(
        self, user: str, vhost: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Set a user's permissions in a vhost."""
        patterns = {"configure": configure, "write": write, "read": read}
        self._request("PUT", f"permissions/{quote(vhost, safe='')}/{user}", patterns)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of its management API to a request for `path`, below ``/api/``."""
        return self._request(method, path, body)

    def queue(self, vhost: str, name: str) -> dict[str, Any] | None:
        """A queue as the management plugin reports it, or None.

        Counts such as ``messages_ready`` lag by `stats_interval`, and are missing at first.
        """
        path = f"queues/{quote(vhost, safe='')}/{quote(name, safe='')}"
        answer: dict[str, Any] | None = self._request("GET", path, missing_ok=True)
        return answer

    def connections(self) -> list[dict[str, Any]]:
        """The client connections that the management plugin reports; new ones appear late."""
        answer: list[dict[str, Any]] = self._request("GET", "connections")
        return [entry for entry in answer if "name" in entry]

    def connection_names(self, vhost: str) -> list[str]:
        """The names of the connected clients of `vhost`, without lag."""
        code = (
            'lists:foreach(fun(Name) -> io:format("~ts~n", [Name]) end, '
            '[element(3, lists:keyfind(<<"connection_name">>, 1, P)) || '
            "Pid <- rabbit_networking:connections(), [{vhost, V}, {client_properties, P}] <- "
            f'[rabbit_reader:info(Pid, [vhost, client_properties])], V =:= <<"{vhost}">>]).'
        )
        return [line for line in self.ctl("eval", code).splitlines() if line != "ok"]

    def close_connections(self, reason: str = "closed by the test") -> int:
        """Close every client connection from the server's side (320); returns their number."""
        code = f'length([rabbit_networking:close_connection(Pid, "{reason}") || ' + (
            "Pid <- rabbit_networking:connections()])."
        )
        return int(self.ctl("eval", code))

    def lose_consumers(self, vhost: str, queue: str) -> int:
        """End the consumers of a classic queue without telling their clients; returns how many."""
        stop = '{basic_cancel, element(1, C), element(2, C), undefined, <<"test">>}'
        if self.version >= (4, 0):
            stop = (
                "{stop_consumer, #{pid => element(1, C), consumer_tag => element(2, C), "
                'user => <<"test">>}}'
            )
        code = (
            f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, '
            f'<<"{queue}">>)), length([ok = gen_server2:call(amqqueue:get_pid(Q), {stop}) || '
            "C <- rabbit_amqqueue:consumers(Q)])."
        )
        return int(self.ctl("eval", code))

    def set_max_message_size(self, size_bytes: int) -> int:
        """Set the largest body for channels opened from now on; returns the earlier value."""
        code = (
            "{ok, Before} = application:get_env(rabbit, max_message_size), "
            f"application:set_env(rabbit, max_message_size, {size_bytes}), "
        )
        if self.version >= (4, 0):
            code += f"persistent_term:put(max_message_size, {size_bytes}), "
        return int(self.ctl("eval", code + "Before."))

    def block(self) -> None:
        """Raise the memory alarm: publishers are blocked until `unblock`."""
        self.ctl("set_vm_memory_high_watermark", "0.000001")

    def unblock(self) -> None:
        """Take the memory alarm back."""
        self.ctl("set_vm_memory_high_watermark", "0.8")

    def sync(self) -> None:
        """Write the declarations to the disk.

        RabbitMQ 3 keeps them in Mnesia's log, which is written up to two seconds late; a queue that
        is killed sooner is lost with all its confirmed messages.
        """
        self.ctl("eval", "mnesia:sync_log().")

    def log_tail(self) -> str:
        """The last lines of its logs."""
        tails = []
        for path in (self._folder / "console.log", self._folder / "log" / "server.log"):
            if path.exists():
                lines = path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
                tails.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(tails) or "(no log)"

    def logged(self, text: str) -> list[str]:
        """The lines of its log that contain `text`."""
        path = self._folder / "log" / "server.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [line for line in lines if text in line]

    # ------------------------------------------------------------------ inside

    def _write_files(
        self, stats_interval: float, settings: Sequence[str], plugins: Sequence[str]
    ) -> None:
        for name in ("home", "data", "log"):
            (self._folder / name).mkdir()
        cookie = self._folder / "home" / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        (self._folder / "enabled_plugins").write_text(
            f"[{', '.join(['rabbitmq_management', *plugins])}].\n"
        )
        (self._folder / "environment").write_text("")
        (self._folder / "advanced.config").write_text("[].\n")
        (self._folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "management.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {self.management_port}\n"
            f"collect_statistics_interval = {int(stats_interval * 1000)}\n"
            "vm_memory_high_watermark.relative = 0.8\n"
            "disk_free_limit.absolute = 1MB\n" + "".join(f"{line}\n" for line in settings)
        )

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        on_loopback = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +sbwt none"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": str(folder / "log" / "server.log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": on_loopback,
            "RABBITMQ_CTL_ERL_ARGS": on_loopback,
            # Makes the start script become the Erlang machine instead of waiting for it as its
            # parent: our child's process id is the server's.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _spawn(self, command: Sequence[str], log_name: str) -> subprocess.Popen[bytes]:
        def spawn() -> subprocess.Popen[bytes]:
            with (self._folder / log_name).open("ab") as log:
                return _popen(_tied_to_us(command), self._environment(), self._folder, log)

        return _spawner.submit(spawn).result()

    def _wait_for(
        self,
        what: str,
        process: subprocess.Popen[bytes],
        condition: Callable[[], bool],
        timeout: float,
    ) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if process.poll() is not None:
                why = f"it ended with status {process.returncode}"
            elif time.monotonic() > deadline:
                why = f"no answer within {timeout:g} s"
            else:
                time.sleep(0.05)
                continue
            raise RabbitMQError(f"RabbitMQ, waiting for {what}: {why}\n{self.log_tail()}")

    def _management_answers(self) -> bool:
        try:
            self._request("GET", "whoami")
        except (RabbitMQError, OSError, http.client.HTTPException):
            return False
        return True

    def _request(self, method: str, path: str, body: Any = None, missing_ok: bool = False) -> Any:
        login = base64.b64encode(b"guest:guest").decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management_port}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        try:
            with _without_proxy.open(request, timeout=60) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            with error:
                if missing_ok and error.code == 404:
                    return None
                raise RabbitMQError(f"{method} {path}: {error.code} {error.read()!r}") from error
        return json.loads(text) if text else None


_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _tied_to_us(command: Sequence[str]) -> list[str]:
    """`command`, which the kernel kills if this process dies."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else list(command)


def _popen(
    command: Sequence[str], environment: dict[str, str], folder: Path, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in the terminal is handled by this process
    )


def _finish(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            return True
    except OSError:
        return False


def _speaks_amqp(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
            link.sendall(_AMQP_HEADER)
            return link.recv(1) == _METHOD_FRAME
    except OSError:
        return False


def _run() -> int:
    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    with RabbitMQ(stats_interval=5.0) as server:
        print(server.url(), flush=True)  # noqa: T201 - a command's output
        try:
            signal.pause()
        except KeyboardInterrupt:
            server.stop()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: ``run`` or ``versions``."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.rabbitmq", description=__doc__)
    parser.add_argument("command", choices=["run", "versions"])
    options = parser.parse_args(arguments)
    if options.command == "versions":
        print(*installed())  # noqa: T201 - a command's output
        return 0
    try:
        return _run()
    except (RabbitMQError, NoSuchRabbitMQError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's output
        return 1


if __name__ == "__main__":
    sys.exit(main())
