"""``broker-client serve`` in a process of its own, which tests may stop and kill."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.support.own_server import OwnServer, free_port, url_of_guest

START_TIMEOUT = 90.0
STOP_TIMEOUT = 60.0
_ROOT = Path(__file__).parents[2]
_ADDRESS = re.compile(r"\b((?:amqps?|unix|https?)://\S+)")


class Served(OwnServer):
    """One server, on a free port of its own which it keeps over restarts.

    Args:
        options: further arguments of the command.
        data: file of the broker; everything is in memory when left out.
        listen: addresses to listen on; a free port when left out.
    """

    def __init__(
        self,
        *options: str,
        data: Path | None = None,
        listen: tuple[str, ...] = (),
    ) -> None:
        self._data, self._options, self._listen = (
            data,
            options,
            (listen or (f"amqp://127.0.0.1:{free_port()}",)),
        )
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="served-")
        self._log = Path(self._folder.name) / "stderr"
        self._logged = ""
        self.line = ""
        """Its output as it began to serve."""
        self.addresses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Served {' '.join(self.addresses)} {'up' if self.is_running else 'down'}>"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def port(self) -> int:
        """Of its first address."""
        return int(self.addresses[0].rpartition(":")[2])

    def url(self, vhost: str = "/") -> str:
        """The address of `vhost`, with the login of the default user."""
        return url_of_guest(self.port, vhost)

    def start(self) -> None:
        """Start it, over the data of the last run, and wait until it serves."""
        command = [sys.executable, "-m", "broker_client", "serve", *self._options]
        for address in self._own_addresses() or self._listen:
            command += ["--listen", address]
        if self._data is not None:
            command += ["--data", str(self._data)]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONWARNINGS": "error"}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.line = self._first_line(self._process)
        self.addresses = tuple(_ADDRESS.findall(self.line))
        if not self.addresses:
            self.close()
            raise AssertionError(f"it does not serve: {self.line!r}\n{self.log()}")

    def _own_addresses(self) -> list[str]:
        """The AMQP addresses of the previous run."""
        return [address for address in self.addresses if not address.startswith("http")]

    @staticmethod
    def _first_line(process: subprocess.Popen[str]) -> str:
        lines: queue.Queue[str] = queue.Queue()
        stdout = process.stdout
        assert stdout is not None
        thread = threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True)
        thread.start()
        try:
            return lines.get(timeout=START_TIMEOUT)
        except queue.Empty:
            process.kill()
            raise AssertionError(f"nothing printed within {START_TIMEOUT} s") from None
        finally:
            thread.join(1.0)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it in order; returns its exit status."""
        return self._end(number)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a power cut would."""
        self._end(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for its end; returns its exit status."""
        assert self._process is not None
        return self._process.wait(timeout)

    def close(self) -> None:
        """End it. May be called more than once."""
        self._end(signal.SIGKILL)
        self._logged = self.log()
        self._folder.cleanup()

    def log(self) -> str:
        """Its standard error, of all runs."""
        return self._log.read_text("utf-8") if self._log.exists() else self._logged

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            status = process.wait(STOP_TIMEOUT)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
            if number is signal.SIGKILL:
                self._process = None
        return status
