"""pytest plugin of broker_client: fixtures for the tests of programs that use it.

It stands beside the package, so that pytest, which imports every plugin that is installed, does not
import all of the package where no test uses it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker_client import Broker
    from broker_client.testing.faults import Faults
    from broker_client.testing.harness import Harness
    from broker_client.testing.recorder import Recorder

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]

_DEFAULT_URL = "embedded://"
_VIRTUAL_TIME = "broker_virtual_time"

if importlib.util.find_spec("pytest_asyncio") is None:
    _async_fixture = pytest.fixture  # anyio's plugin runs those of tests that it runs
else:
    from pytest_asyncio import fixture as _async_fixture  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("broker_client")
    group.addoption(
        "--broker-url",
        default=_DEFAULT_URL,
        metavar="URL",
        help="broker that tests run on; embedded:// (default) is a new one for each test",
    )
    parser.addini("broker_config", "configuration of the fixture `broker`: a YAML file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_VIRTUAL_TIME}: waiting takes no time in this test; on embedded:// only",
    )


class _VirtualTime:
    """Gives tests with the marker a loop of virtual time, and leaves the loop of others alone."""

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_asyncio_loop_factories(
        self, item: pytest.Item
    ) -> Generator[None, LoopFactories | None, LoopFactories]:
        from broker_client.testing.virtual_time import VirtualTimeLoop

        chosen = yield
        if item.get_closest_marker(_VIRTUAL_TIME) is not None:
            return {"virtual time": VirtualTimeLoop}
        return chosen or {"default": asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take part in the choice of loops from the first test that asks for virtual time."""
    plugins = metafunc.config.pluginmanager
    if (
        metafunc.definition.get_closest_marker(_VIRTUAL_TIME) is not None
        and plugins.get_plugin(_VIRTUAL_TIME) is None
    ):
        plugins.register(_VirtualTime(), _VIRTUAL_TIME)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(_VIRTUAL_TIME) is None:
        return
    url = item.config.getoption("--broker-url")
    if url != _DEFAULT_URL:
        pytest.skip(f"virtual time needs {_DEFAULT_URL}, and --broker-url is {url}")
    asyncio_plugin = sys.modules.get("pytest_asyncio.plugin")
    if not hasattr(asyncio_plugin, "LoopFactory"):
        pytest.fail(f"the marker {_VIRTUAL_TIME} needs pytest-asyncio 1.4 or newer", pytrace=False)


@pytest.fixture
def broker_config(pytestconfig: pytest.Config) -> Any:
    """The configuration of `broker`: the file that `broker_config` names in pytest's settings.

    Override it to return another path, a mapping, or a `BrokerConfig`.
    """
    name = pytestconfig.getini("broker_config")
    if not name:
        pytest.fail(
            "no configuration for the fixture `broker`: name a file as broker_config in pytest's "
            "settings, or define a fixture `broker_config`"
        )
    return Path(pytestconfig.rootpath, str(name))


@_async_fixture
async def _broker_harness(
    broker_config: Any, pytestconfig: pytest.Config
) -> AsyncIterator[Harness]:
    from broker_client.testing.harness import harness

    async with harness(broker_config, pytestconfig.getoption("--broker-url")) as made:
        yield made


@_async_fixture
async def broker(_broker_harness: Harness) -> Broker:
    """A Broker for one test, on the broker that `--broker-url` names."""
    return _broker_harness.broker


@_async_fixture
async def broker_recorder(_broker_harness: Harness) -> Recorder:
    """What the test's Broker published and handled."""
    return _broker_harness.recorder


@_async_fixture
async def broker_faults(_broker_harness: Harness) -> Faults:
    """Faults of the connection and the broker of the test's Broker."""
    return _broker_harness.faults
