"""Imports: parts that are not used are not loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "aio_pika",
    "aiormq",
    "broker_client.config.attribute_docstrings",
    "broker_client.core.engine",
    "broker_client.core.snapshots",
    "broker_client.connection.management",
    "broker_client.node.node",
    "broker_client.store.sqlite",
    "broker_client.store.writer",
    "cryptography",
    "http.client",
    "opentelemetry",
    "prometheus_client",
    "pyspark",
    "rich",
    "sqlalchemy",
    "sqlite3",
    "tenacity",
    "typer",
    "urllib.request",
    "yaml",
)
IN_MEMORY = """
async def main():
    async with broker_client.Broker.create({"vhosts": {"/": {"connection": "embedded://"}}}):
        pass
asyncio.run(main())
"""
BUILT_MODELS = """
from broker_client.config.values import Settings
def below(model):
    return [each for model in model.__subclasses__() for each in (model, *below(model))]
models = below(Settings)
print(*(each.__name__ for each in models if each.__pydantic_complete__))
print(*(each.__name__ for each in models))
"""


def loaded_by(program: str) -> set[str]:
    """The modules of `HEAVY` that a new interpreter has loaded after `program`."""
    show = f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    code = f"import asyncio, sys, broker_client\n{program}\n{show}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "program",
    [
        "from broker_client import *",
        "config = broker_client.load_config({'vhosts': {'/': {'connection': 'amqp://localhost'}}})\n"
        "broker_client.Broker(config)",
    ],
    ids=["import", "broker"],
)
def test_import_of_the_package_loads_neither_of_the_brokers_nor_an_extra(program: str) -> None:
    assert loaded_by(program) == set()


def test_package_alone_loads_none_of_its_modules() -> None:
    code = (
        "import sys, broker_client\nprint(*[each for each in sys.modules if 'broker_cl' in each])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["broker_client"]


def models_after(program: str) -> tuple[set[str], set[str]]:
    """The models of the configuration that `program` has built, and all that there are."""
    done = subprocess.run(
        [sys.executable, "-c", f"import asyncio, broker_client\n{program}\n{BUILT_MODELS}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    built, models = done.stdout.splitlines()
    return set(built.split()), set(models.split())


def test_import_of_the_package_builds_no_model_of_the_configuration() -> None:
    built, models = models_after("broker_client.Broker")
    assert built == set()
    assert "BrokerConfig" in models


def test_broker_builds_the_models_of_what_its_configuration_has() -> None:
    built, _ = models_after(IN_MEMORY)
    assert built == {
        "BrokerConfig",
        "ConnectionConfig",
        "ExchangeConfig",
        "ManagementConfig",
        "PublicationConfig",
        "SubscriptionConfig",
        "VhostConfig",
    }


def test_broker_in_memory_loads_the_core_and_nothing_that_it_does_not_use() -> None:
    assert loaded_by(IN_MEMORY) == {"broker_client.core.engine", "broker_client.node.node"}
