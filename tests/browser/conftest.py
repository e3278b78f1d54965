"""One Chromium for the session, with axe-core, and servers with data to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.browser import Browser, chromium_programs
from tests.support.left_out import missing
from tests.support.npm import npm_home
from tests.support.operating import OperatedBroker, a_shop
from tests.support.own_server import free_port
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

_AXE = "axe-core@4.14.1"
_HOME = Path(os.environ.get("AXE_HOME") or Path(sys.prefix) / "share" / "axe")


@pytest.fixture(scope="session")
def axe_script() -> Path:
    """The script of axe-core."""
    return npm_home(_HOME, [_AXE]) / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def _chromium(axe_script: Path) -> Iterator[Browser]:
    programs = chromium_programs() or missing("chromium with chromium-driver")
    with Browser(programs, axe_script) as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    """The browser, without the state of the previous test."""
    _chromium.fresh()
    return _chromium


# --------------------------------------------------------------------------- what is shown


class Dashboard(OperatedBroker):
    """``broker-client serve`` with its dashboard, in a process of its own; it may be restarted."""

    def __init__(self, *options: str) -> None:
        port = free_port()
        self.served = Served("--http", f"127.0.0.1:{port}", "--log-level", "error", *options)
        self.served.start()
        url = f"http://127.0.0.1:{port}"
        super().__init__(self.served.url(), url, f"{url}/")
        # The AMQP port stays over restarts; the other one is an option.
        self.served.addresses = self.served.addresses[:1]


@contextmanager
def a_dashboard(*options: str) -> Iterator[Dashboard]:
    """A server for one test."""
    dashboard = Dashboard(*options)
    try:
        yield dashboard
    finally:
        dashboard.served.close()


@pytest.fixture(scope="session")
def empty() -> Iterator[Dashboard]:
    """Nothing is declared."""
    with a_dashboard() as dashboard:
        yield dashboard


@pytest.fixture(scope="session")
def shop() -> Iterator[Dashboard]:
    """A small application with dead letters; tests only look at it."""
    with a_dashboard() as dashboard:
        a_shop(dashboard)
        with a_consumer(dashboard):
            yield dashboard


@pytest.fixture
def own_shop() -> Iterator[Dashboard]:
    """The same, for one test that changes it."""
    with a_dashboard() as dashboard:
        a_shop(dashboard)
        yield dashboard


@contextmanager
def a_consumer(dashboard: OperatedBroker) -> Iterator[None]:
    """A consumer that holds two messages of mail."""
    with dashboard.channel(name="mailer") as channel:
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("mail", lambda *_: None, consumer_tag="mailer-1")
        yield


def log_in(browser: Browser, address: str, user: str = "guest") -> None:
    """Open an address of a dashboard, and log in where it asks for it."""
    browser.open(address)
    browser.until("a page", lambda: browser.all("main"))
    if browser.all("input[name=password]"):
        browser.fill("input[name=user]", user)
        browser.fill("input[name=password]", user)
        browser.click("form button")
    browser.until("a heading", lambda: browser.all("nav[aria-label]") and browser.all("main h1"))


@contextmanager
def dashboard_of(server: RabbitMQ) -> Iterator[OperatedBroker]:
    """``broker-client dashboard`` in front of a RabbitMQ."""
    management = f"http://guest:guest@127.0.0.1:{server.management_port}"
    process = subprocess.Popen(
        (
            *(sys.executable, "-m", "broker_client", "dashboard", "--management", management),
            *("--amqp", f"amqp://127.0.0.1:{server.port}", "--listen", "127.0.0.1:0"),
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None, "it serves nothing"
        yield OperatedBroker(server.url(), management.replace("guest:guest@", ""), found[0])
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()
