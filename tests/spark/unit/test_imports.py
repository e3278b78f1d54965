"""Spark is not loaded before it is used; an error says when it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_client.spark import errors

ROOT = str(Path(__file__).parents[3])


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module",
    ["broker_client", "broker_client.spark", "broker_client.spark.options"],
)
def test_import_loads_neither_pyspark_nor_pyarrow(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize(
    "module",
    [
        "reading.spool",
        "reading.queue_receiver",
        "writing.message_ids",
        "writing.messages",
        "writing.publish_job",
        "writing.driver_publisher",
    ],
)
def test_module_works_without_pyspark(module: str) -> None:
    code = f"import sys; sys.modules['pyspark'] = None; import broker_client.spark.{module}"
    assert python(code) == ""


def test_missing_extra_is_named() -> None:
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pyspark' else find(name, *a)\n"
        "import broker_client.spark as s\n"
        "try: s.register(None)\n"
        "except ImportError as error: print(error)"
    )
    told = python(code)
    assert told.startswith("pyspark is not installed; install the extra")
    assert "amqp-broker-client[spark]" in told


def test_every_connector_error_is_in_the_drawing() -> None:
    text = errors.__doc__ or ""
    for name, member in vars(errors).items():
        if isinstance(member, type) and issubclass(member, errors.SparkConnectorError):
            assert name in text
