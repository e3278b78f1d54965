"""A broker behind a proxy, in a vhost for each test: RabbitMQ, or our own on a port.

Our own server gets the tests marked ``served`` or, with FAULTS=all in the environment (``make
soak``), all that can run on it. Those marked ``rabbitmq`` need features that only RabbitMQ has.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.managed import FaultyServer, ManagedServer
from tests.support.proxy import Proxy

SERVERS = [pytest.param("rabbitmq", marks=pytest.mark.rabbitmq), "served"]


@dataclass(frozen=True, slots=True)
class Place:
    """A vhost of the shared server, reached through a proxy."""

    server: FaultyServer
    vhost: str
    proxy: Proxy

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"amqp://guest:guest@127.0.0.1:{self.proxy.port}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that do not run on our own server."""
    left_out = [item for item in items if _is_served(item) and not _is_wanted(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_served(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and "served" in call.params.values()


def _is_wanted(item: pytest.Item) -> bool:
    if item.get_closest_marker("rabbitmq") is not None:
        return False
    return os.environ.get("FAULTS") == "all" or item.get_closest_marker("served") is not None


@pytest.fixture(scope="session")
def served() -> Iterator[ManagedServer]:
    """The shared server of our own, in memory. Never stop this one."""
    with ManagedServer() as server:
        yield server


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> FaultyServer:
    """The shared server."""
    shared: FaultyServer = request.getfixturevalue(request.param)
    return shared


@pytest.fixture
async def place(server: FaultyServer) -> AsyncIterator[Place]:
    vhost = server.make_vhost()
    async with Proxy("127.0.0.1", server.port) as proxy:
        yield Place(server, vhost, proxy)
    server.delete_vhost(vhost)


@pytest.fixture(params=SERVERS)
def restartable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultyServer]:
    """A server for one test alone, which may stop, kill and start it."""
    if request.param == "rabbitmq":
        yield request.getfixturevalue("rabbitmq_restartable")
        return
    with ManagedServer(tmp_path / "broker.db") as server:
        yield server


@pytest.fixture
def chance() -> random.Random:
    """Randomness with a new seed, which is printed; FAULTS_SEED in the environment sets it."""
    seed = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FAULTS_SEED={seed}")  # noqa: T201 - pytest shows it with a failure
    return random.Random(seed)
