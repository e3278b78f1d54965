"""The clients that are measured: how each is started, and whether it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_TIMEOUT = 300.0  # seconds for one run

BASE = "aio-pika"
"""The client that the others are compared with."""


class RunFailedError(Exception):
    """A run ended without a result."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One client."""

    name: str
    command: tuple[str, ...]
    missing: str | None = None
    """Why it cannot be measured here, if so."""
    needs_broker: bool = True

    def run(self, url: str, messages: int) -> Run:
        """Measure once, in a process of its own.

        Raises:
            RunFailedError: it failed, or took too long.
        """
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        try:
            done = subprocess.run(
                [*self.command, url, str(messages)],
                cwd=_ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunFailedError(f"{self.name}: no result within {_TIMEOUT:g} s") from None
        if done.returncode != 0:
            raise RunFailedError(f"{self.name}: status {done.returncode}\n{done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        publish, consume = result["publish"], result["consume"]
        return Run(
            messages / publish["passed"],
            messages / consume["passed"],
            (publish["processor"] + consume["processor"]) / messages * 1e6,
            result["versions"],
        )


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run."""

    publish: float
    """Confirmed publishes a second."""
    consume: float
    """Deliveries handled and acked a second."""
    processor: float
    """Microseconds of the client's processor time a message, for both."""
    versions: dict[str, str] = field(default_factory=dict)


def contestants() -> list[Contestant]:
    """All of them, in the order of a round."""
    return [
        _python(BASE, "aio_pika_plain"),
        _python("ours: Broker", "ours"),
        _python("ours: transport", "ours_transport"),
        _python("FastStream", "faststream_rabbit", _unless_importable("faststream.rabbit")),
        _node("amqplib"),
        _node("rascal"),
        _python("ours: embedded", "ours", needs_broker=False),
    ]


def _python(
    name: str, module: str, missing: str | None = None, *, needs_broker: bool = True
) -> Contestant:
    command = (sys.executable, "-m", f"bench.peers.{module}")
    return Contestant(name, command, missing, needs_broker)


def _node(package: str) -> Contestant:
    program = _HERE / "peers" / f"{package}.js"
    return Contestant(f"{package} (node)", ("node", str(program)), _unless_resolved(package))


def _unless_importable(module: str) -> str | None:
    package = module.split(".")[0]
    if importlib.util.find_spec(package) is not None and importlib.util.find_spec(module):
        return None
    return f"not installed: pip install '{package}[rabbit]'"


def _unless_resolved(package: str) -> str | None:
    if shutil.which("node") is None:
        return "node is not installed"
    found = subprocess.run(
        ["node", "-e", f"require.resolve('{package}')"],
        cwd=_HERE / "peers",
        capture_output=True,
        check=False,
    )
    return None if found.returncode == 0 else "not installed: npm install, in bench/peers"
