"""Fixtures for every suite: the private servers, and the check for leaks."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.leaks import Snapshot, leaks_since
from tests.support.left_out import IN_CI, missing
from tests.support.postgresql import PostgreSQL, postgresql_programs
from tests.support.rabbitmq import RabbitMQ
from tests.support.rabbitmq_installed import NoSuchRabbitMQError, chosen
from tests.support.redis import Redis, redis_program

# A busy machine may pause in the middle of an example.
settings.register_profile(
    "steady",
    parent=settings.get_profile("ci") if IN_CI else None,
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

RABBITMQ_FIXTURES = {"rabbitmq", "rabbitmq_restartable"}
RESTART_TEST_TIMEOUT = 180.0
"""Seconds: a server needs about ten to start, and more on a busy machine."""

session_rabbitmq = pytest.StashKey[RabbitMQ]()
left_out = pytest.StashKey[Counter[str]]()

SERVERS: dict[str, tuple[str, Callable[[], object]]] = {
    "rabbitmq": ("RabbitMQ", chosen),
    "redis": ("Redis", redis_program),
    "postgresql": ("PostgreSQL", postgresql_programs),
}
"""By the marker of the tests that need it: its name, and what finds it, or returns None."""


# --------------------------------------------------------------------------- RabbitMQ


def pytest_configure(config: pytest.Config) -> None:
    for marker, (name, _) in SERVERS.items():
        without = "without one it is left out, or fails where CI is set"
        config.addinivalue_line("markers", f"{marker}: needs {name}; {without}")
    config.addinivalue_line(
        "markers", "served: of the tests of faults, one that every run tries on our own server too"
    )
    config.addinivalue_line(
        "markers",
        "own_versions: starts the RabbitMQs that it needs, whichever RABBITMQ names: runs once",
    )
    config.stash[left_out] = Counter()
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
    for marker, (name, found) in SERVERS.items():
        if item.get_closest_marker(marker) is not None and found() is None:
            item.config.stash[left_out][name] += 1
            missing(name)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = config.stash.get(left_out, Counter())
    if counts:
        terminalreporter.section("LEFT OUT", yellow=True, bold=True)
    for name, count in counts.items():
        terminalreporter.line(
            f"{count} tests need {name}, which is not installed: run scripts/install-servers "
            "(Debian, as root) and run the tests again."
        )


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
