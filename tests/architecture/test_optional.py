"""An extra's packages are imported when used; errors name the extra where they are missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from broker_client import Broker
from broker_client.errors import UnsupportedError
from tests.docs.documents import ROOT

OPTIONAL = [
    "cronsim",
    "cryptography",
    "fast_depends",
    "fsspec",
    "msgpack",
    "opentelemetry",
    "prometheus_client",
    "pyspark",
    "pyarrow",
    "redis",
    "resvg_py",
    "sqlalchemy",
    "watchfiles",
    "zstandard",
]
VHOSTS: dict[str, Any] = {"vhosts": {"/": {}}}


def test_a_broker_that_publishes_and_handles_imports_nothing_optional() -> None:
    program = f"""
import asyncio, sys
from broker_client import Broker
async def main():
    queue = {{"queues": {{"q": None}}}}
    async with Broker.create({{"vhosts": {{"/": queue}}}}) as broker:
        handled = asyncio.Event()
        @broker.handle("/q")
        async def handle(content): handled.set()
        await (await broker.publish("/q", 1))
        await handled.wait()
asyncio.run(main())
print(sorted(set({OPTIONAL!r}) & sys.modules.keys()))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")


async def test_tracing_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "broker_client.tracing", raising=False)
    with pytest.raises(UnsupportedError, match=r"\[otel\]"):
        await Broker.create({**VHOSTS, "tracing": {}})


def test_outbox_in_a_database_without_its_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("broker_client.sql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(UnsupportedError, match=r"\[sqlalchemy\]"):
        importlib.import_module("broker_client.sql")


@pytest.mark.parametrize("package", ["starlette", "httpx", "uvicorn"])
def test_dashboard_without_its_packages_names_the_extra_before_it_asks_for_a_password(
    package: str,
) -> None:
    code = (
        f"import sys, runpy\nsys.modules[{package!r}] = None\n"
        "sys.argv[1:] = ['dashboard', '--management', 'http://ann@127.0.0.1:1']\n"
        "runpy.run_module('broker_client', run_name='__main__', alter_sys=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "[server]" in ended.stderr
    assert "password" not in ended.stderr
