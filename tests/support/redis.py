"""A private Redis on loopback, with nothing on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from typing import Self

from tests.support.own_server import free_port

_START_TIMEOUT = 60.0  # seconds


def redis_program() -> str | None:
    """The server's program, or None where it is not installed."""
    return shutil.which("redis-server")


class Redis:
    """One private server process."""

    def __init__(self) -> None:
        program = redis_program()
        if program is None:
            raise FileNotFoundError("redis-server is not installed")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._process = subprocess.Popen(
            [
                program,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                *("--appendonly", "no", "--dir", self._folder.name),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=10.0).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.close()
                    raise
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop it and wait for its end."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
