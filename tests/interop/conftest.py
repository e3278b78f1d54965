"""node's rascal, installed once beside the virtual environment."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PEER = Path(__file__).parent / "rascal" / "peer.js"
PACKAGES = ("rascal@21.0.1", "amqplib@0.10.9")
HOME = Path(os.environ.get("RASCAL_HOME") or Path(sys.prefix) / "share" / "rascal")

RunRascal = Callable[[Mapping[str, Any]], Awaitable[Any]]


def npm_home(home: Path, packages: Sequence[str]) -> Path:
    """`home`, with `packages` in its `node_modules`; installed there the first time."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        if os.environ.get("CI"):
            pytest.fail("node and npm are not installed, and CI is set")
        pytest.skip(f"LEFT OUT: node is not installed; these tests run {' '.join(packages)}")
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:  # another run may be installing it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "node_modules" / packages[0].rpartition("@")[0]).is_dir():
            options = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund")
            subprocess.run(
                [npm, "install", *options, *packages],
                cwd=home,
                check=True,
                capture_output=True,
                timeout=300,
            )
    return home


@pytest.fixture(scope="session")
def rascal_home() -> Path:
    """A folder with rascal in its `node_modules`."""
    return npm_home(HOME, PACKAGES)


@pytest.fixture
def run_rascal(rascal_home: Path) -> RunRascal:
    """Run one job with rascal; returns its output."""

    async def run(job: Mapping[str, Any]) -> Any:
        process = await asyncio.create_subprocess_exec(
            "node",
            str(PEER),
            env={**os.environ, "NODE_PATH": str(rascal_home / "node_modules")},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(json.dumps(job).encode()), 120.0)
        assert process.returncode == 0, err.decode()
        return json.loads(out)

    return run
