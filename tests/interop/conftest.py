"""node's rascal, installed once beside the virtual environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.npm import npm_home

PEER = Path(__file__).parent / "rascal" / "peer.js"
PACKAGES = ("rascal@21.0.1", "amqplib@0.10.9")
HOME = Path(os.environ.get("RASCAL_HOME") or Path(sys.prefix) / "share" / "rascal")

RunRascal = Callable[[Mapping[str, Any]], Awaitable[Any]]


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
