"""The brokers that are measured, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.support.rabbitmq import RabbitMQ

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 30.0  # seconds
_WITHOUT_UVLOOP = (
    "import sys; sys.modules['uvloop'] = None; from broker_client.cli.main import app; app()"
)


class RunningBroker(NamedTuple):
    """One broker."""

    name: str
    url: str
    process: psutil.Process
    http_port: int = 0
    """Of the dashboard and the API; 0 where they are not served."""

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        times = self.process.cpu_times()
        return times.user + times.system

    def memory_bytes(self) -> int:
        """Resident memory."""
        return int(self.process.memory_info().rss)


@contextmanager
def rabbitmq() -> Iterator[RunningBroker]:
    """A RabbitMQ of its own."""
    with RabbitMQ(settings=["heartbeat = 60"]) as server:
        version = ".".join(map(str, server.version))
        yield RunningBroker(f"RabbitMQ {version}", server.url(), psutil.Process(server.pid))


@contextmanager
def ours(*, keeps: bool, uvloop: bool, http: bool = False) -> Iterator[RunningBroker]:
    """``broker-client serve``.

    Args:
        keeps: in a file, not in memory.
        uvloop: with uvloop, which has to be installed.
        http: with the dashboard and the API.
    """
    name = f"broker_client, {'file' if keeps else 'memory'}{', uvloop' if uvloop else ''}"
    with tempfile.TemporaryDirectory(prefix="bench-server-") as folder:
        program = ["-m", "broker_client"] if uvloop else ["-c", _WITHOUT_UVLOOP]
        command = [sys.executable, *program, "serve"]
        command += ["--listen", "amqp://127.0.0.1:0"]
        if http:
            command += ["--http", "127.0.0.1:0"]
        if keeps:
            command += ["--data", str(Path(folder) / "broker.db")]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = next(word for word in line.split() if word.startswith("amqp://"))
            url = address.replace("amqp://", "amqp://guest:guest@").rstrip("/") + "/%2F"
            port = int(line.partition(" http://")[2].split()[0].rpartition(":")[2]) if http else 0
            yield RunningBroker(name, url, psutil.Process(process.pid), port)
        finally:
            process.terminate()
            try:
                process.wait(START_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
