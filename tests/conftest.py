"""Fixtures for every suite: the private servers, and the check for leaks."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.leaks import Snapshot, leaks_since
from tests.support.postgresql import PostgreSQL, postgresql_programs
from tests.support.rabbitmq import RabbitMQ
from tests.support.rabbitmq_installed import NoSuchRabbitMQError, chosen
from tests.support.redis import Redis, redis_program

# A busy machine may pause in the middle of an example.
settings.register_profile(
    "steady",
    parent=settings.get_profile("ci") if os.environ.get("CI") else None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
settings.register_profile(
    "fuzz",  # scripts/fuzz
    max_examples=300,
    deadline=None,
    derandomize=False,  # and no seed is given either: with one, Hypothesis keeps nothing
    database=DirectoryBasedExampleDatabase(".fuzz"),
)

IN_CI = bool(os.environ.get("CI"))
RABBITMQ_FIXTURES = {"rabbitmq", "rabbitmq_restartable"}
RESTART_TEST_TIMEOUT = 180.0
"""Seconds: a server needs about ten to start, and more on a busy machine."""

session_rabbitmq = pytest.StashKey[RabbitMQ]()
left_out = pytest.StashKey[int]()
redis_left_out = pytest.StashKey[int]()
postgresql_left_out = pytest.StashKey[int]()


# --------------------------------------------------------------------------- RabbitMQ


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "rabbitmq: needs RabbitMQ; without one it is left out, or fails where CI is set",
    )
    config.addinivalue_line(
        "markers", "served: of the tests of faults, one that every run tries on our own server too"
    )
    config.addinivalue_line(
        "markers", "redis: needs Redis; without one it is left out, or fails where CI is set"
    )
    config.addinivalue_line(
        "markers",
        "postgresql: needs PostgreSQL; without one it is left out, or fails where CI is set",
    )
    config.addinivalue_line(
        "markers",
        "own_versions: starts the RabbitMQs that it needs, whichever RABBITMQ names: runs once",
    )
    config.stash[left_out] = config.stash[redis_left_out] = 0
    config.stash[postgresql_left_out] = 0
    try:
        chosen()
    except NoSuchRabbitMQError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str:
    return f"RabbitMQ {chosen() or 'is not installed'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        wanted = RABBITMQ_FIXTURES & set(getattr(item, "fixturenames", ()))
        if wanted:
            item.add_marker(pytest.mark.rabbitmq)
        if "redis_url" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.redis)
        if "rabbitmq_restartable" in wanted and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(RESTART_TEST_TIMEOUT))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the shared server before the first test, outside of any test's time limit."""
    config = session.config
    needed = any("rabbitmq" in getattr(item, "fixturenames", ()) for item in session.items) or any(
        item.get_closest_marker("rabbitmq") for item in session.items
    )
    if not needed or config.option.collectonly or chosen() is None:
        return
    server = config.stash[session_rabbitmq] = RabbitMQ()
    server.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    server = session.config.stash.get(session_rabbitmq, None)
    if server is not None:
        server.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("redis") is not None and redis_program() is None:
        if IN_CI:
            pytest.fail("Redis is not installed, and CI is set: see scripts/install-servers")
        item.config.stash[redis_left_out] += 1
        pytest.skip("Redis is not installed")
    if item.get_closest_marker("postgresql") is not None and postgresql_programs() is None:
        if IN_CI:
            pytest.fail("PostgreSQL is not installed, and CI is set: see scripts/install-servers")
        item.config.stash[postgresql_left_out] += 1
        pytest.skip("PostgreSQL is not installed")
    if item.get_closest_marker("rabbitmq") is None or chosen() is not None:
        return
    if IN_CI:
        pytest.fail("RabbitMQ is not installed, and CI is set: see scripts/install-servers")
    item.config.stash[left_out] += 1
    pytest.skip("RabbitMQ is not installed")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    count = config.stash.get(left_out, 0)
    if count:
        terminalreporter.section("LEFT OUT", yellow=True, bold=True)
        terminalreporter.line(
            f"{count} tests need RabbitMQ, which is not installed: run scripts/install-servers "
            "(Debian, as root) and run the tests again."
        )

    count = config.stash.get(redis_left_out, 0)
    if count:
        terminalreporter.section("LEFT OUT", yellow=True, bold=True)
        terminalreporter.line(f"{count} tests need Redis: run scripts/install-servers.")

    count = config.stash.get(postgresql_left_out, 0)
    if count:
        terminalreporter.section("LEFT OUT", yellow=True, bold=True)
        terminalreporter.line(f"{count} tests need PostgreSQL: run scripts/install-servers.")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The address of a private Redis."""
    with Redis() as server:
        yield server.url


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A private PostgreSQL. Take a schema of your own from `make_schema`."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(pytestconfig: pytest.Config) -> RabbitMQ:
    """The shared server. Take a vhost of your own from `make_vhost`; never stop this one."""
    return pytestconfig.stash[session_rabbitmq]


@pytest.fixture
def rabbitmq_restartable() -> Iterator[RabbitMQ]:
    """A server for one test alone, which may stop, kill and start it."""
    with RabbitMQ() as server:
        yield server


# --------------------------------------------------------------------------- leaks


@pytest.fixture
async def _leak_watch() -> AsyncIterator[None]:
    before = Snapshot.take()
    yield
    leaked = await leaks_since(before)
    if leaked:
        pytest.fail("left behind:\n" + "\n".join(leaked), pytrace=False)


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> None:
    """Every async test must leave no task, socket or thread behind.

    Requested first, so it checks last, after the teardown of all other fixtures.
    """
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_leak_watch")
