"""A private PostgreSQL on loopback, from Debian's programs, owned by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from tests.support.own_server import OwnServer, free_port

_START_TIMEOUT = 90.0  # seconds
_USERS = ("postgres", "nobody")
"""The user that runs it when we are root, which PostgreSQL refuses."""


def postgresql_programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs, or None where it is not installed."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: each.parts[-3].zfill(3)
    )
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


class PostgreSQL(OwnServer):
    """One cluster and its server process."""

    def __init__(self) -> None:
        programs = postgresql_programs()
        if programs is None:
            raise FileNotFoundError("PostgreSQL is not installed")
        self._programs = programs
        self._user = _unprivileged()
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Create the cluster, and wait until its server answers."""
        data = str(self._folder / "data")
        self._run(
            "initdb", "-D", data, "-U", "test", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"
        )
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._programs / "postgres",
                    *("-D", data, "-h", "127.0.0.1", "-p", str(self.port), "-k", ""),
                    *("-F", "-c", "max_connections=200"),  # no fsync: only clients are killed
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while self._ask("pg_isready", "-q").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text())
            time.sleep(0.05)

    def make_schema(self) -> str:
        """Create an empty schema and its owner; returns its address, for asyncpg."""
        name = f"t{uuid4().hex[:12]}"
        make = f"CREATE ROLE {name} LOGIN; CREATE SCHEMA AUTHORIZATION {name}"
        self._ask("psql", "-q", "-d", "postgres", "-c", make).check_returncode()
        return f"postgresql+asyncpg://{name}@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        """Stop it at once and remove the data. May be called more than once."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # "immediate": it ends its own processes
            try:
                process.wait(timeout=30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "test")
        return subprocess.run(
            [self._programs / program, *where, *arguments], capture_output=True, timeout=90
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self._folder,
            timeout=60,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")


def _unprivileged() -> str | None:
    """The user to run as; None for our own."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in _USERS if name in known)
