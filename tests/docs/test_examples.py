"""Every program in examples/ runs, and does what its docstring says."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_client import Broker, load_config
from tests.docs.documents import ROOT
from tests.docs.processes import run_python
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

pytestmark = pytest.mark.timeout(180)

RETRY = """\
tea: attempt 1 fails
unicorn: attempt 1 fails
tea: attempt 2 fails
unicorn: attempt 2 fails
tea: attempt 3 succeeds
unicorn: attempt 3 fails
unicorn: dead-lettered after rejected: out of stock
"""
RETURNS = """\
bound key: success
unbound key: return, NO_ROUTE
unbound key: awaiting it raises MessageReturnedError
link down: paused
link down: success
2 messages were in the queue
"""
FROM_YAML = """\
order 1: tea (order.placed)
order 2: milk (order.changed)
order 3: unicorn cannot be had
"""
OUTBOX = "example_orders: 1\nexample_shipments: 1\n"
OUTPUTS = {
    "outbox": OUTBOX,
    "hello": "order.new {'pizza': 2}\n",
    "retry": RETRY,
    "returns": RETURNS,
    "from_yaml": FROM_YAML,
}
STDERR = {
    "returns": "/: connection to embedded:// lost: bounced\n",
    "retry": "subscription fulfil: message ID was dead-lettered (dropped, if retry-example has no "
    "dead-letter exchange) after 3 tries: LookupError: out of stock\n",
}
KEYS = [
    "published",
    "confirmed",
    "returned",
    "handled",
    "retried",
    "dead_lettered",
    "lost",
    "seconds",
]


@pytest.fixture
def rabbitmq_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    vhost = rabbitmq.make_vhost()
    yield rabbitmq.url(vhost)
    rabbitmq.delete_vhost(vhost)


def test_every_example_has_a_test() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {*OUTPUTS, "flights", "service", "test_service"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_example_prints_what_is_expected(name: str) -> None:
    done = run_python(f"examples/{name}.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == OUTPUTS[name]
    assert re.sub(r"message \w{32} ", "message ID ", done.stderr) == STDERR.get(name, "")


@pytest.fixture(scope="module")
def served_url() -> Iterator[str]:
    with Served() as server:
        yield server.url()


@pytest.mark.parametrize("name", ["retry", "returns"])
def test_example_prints_the_same_on_the_server(name: str, served_url: str) -> None:
    done = run_python(f"examples/{name}.py", served_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == OUTPUTS[name]


@pytest.mark.parametrize("name", ["retry", "returns"])
def test_example_prints_the_same_on_rabbitmq(name: str, rabbitmq_url: str) -> None:
    done = run_python(f"examples/{name}.py", rabbitmq_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == OUTPUTS[name]


# --------------------------------------------------------------------------- service


class Service:
    """examples/service.py, running on a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BROKER_URL": f"embedded://{folder / 'broker.db'}",
            "PORT": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", ROOT / "examples" / "service.py"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log = ""
        address = re.search(r":(\d+) ", self.heard("Uvicorn running on "))
        assert address is not None
        self._port = int(address[1])

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def heard(self, text: str) -> str:
        """The next line of its log with `text`."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log += line
            if text in line:
                return line
        raise AssertionError(self._log)

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        """Status and text of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def end(self) -> int:
        """Terminate it as systemd does; returns its exit status."""
        self._process.send_signal(signal.SIGTERM)
        self.heard("Application shutdown complete")
        _, rest = self._process.communicate(timeout=90)
        assert "Traceback" not in rest
        return self._process.returncode


def test_service_takes_orders_answers_probes_and_ends_in_order(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        assert service.ask("POST", "/orders", '{"id": 7}') == (202, "")
        service.heard("order 7 is on its way")
        assert service.ask("POST", "/orders", "{")[0] == 400
        assert service.ask("GET", "/health/live")[0] == 200
        assert service.ask("GET", "/health/ready")[0] == 200
        assert service.ask("GET", "/nothing")[0] == 404
        status, metrics = service.ask("GET", "/metrics/")
        assert status == 200
        assert 'broker_client_connection_up{role="both",vhost="/"} 1' in metrics
        success = 'broker_client_publishes_total{outcome="success",publication="orders"} 1'
        assert success in metrics
        deferred = 'broker_client_queue_messages{queue="fulfilment",state="deferred",vhost="/"} 0'
        assert deferred in metrics
        assert service.end() == -signal.SIGTERM


def test_service_keeps_what_waited_over_a_restart(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        assert service.ask("POST", "/orders", '{"id": "none"}') == (202, "")
        service.heard("Input should be a valid integer")
        assert service.end() == -signal.SIGTERM
    with Service(tmp_path) as service:
        failed = 'broker_client_queue_messages{queue="failed-orders",state="ready",vhost="/"} 1'
        assert failed in service.ask("GET", "/metrics/")[1]
        assert service.end() == -signal.SIGTERM


def test_service_with_a_wrong_address_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", f"embedded://{tmp_path}/none/broker.db")
    done = run_python("examples/service.py")
    assert done.returncode == 3
    assert "failed to connect to embedded://" in done.stderr
    assert "there is no folder" in done.stderr
    assert "Application startup failed" in done.stderr


def test_tests_of_the_service_pass_on_rabbitmq_too(rabbitmq_url: str) -> None:
    done = run_python("-m", "pytest", "-q", "examples", "--broker-url", rabbitmq_url)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout  # virtual time needs the built-in broker


# --------------------------------------------------------------------------- flights


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    """The last line of the demo's output."""
    assert done.returncode == 0, done.stderr
    made: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert list(made) == KEYS
    assert made.pop("seconds") > 0
    return made


def expected(published: int, never_departed: int) -> dict[str, int]:
    return {
        "published": published,
        "confirmed": published,
        "returned": 0,
        "handled": published - never_departed,
        "retried": 2 * never_departed,
        "dead_lettered": never_departed,
        "lost": 0,
    }


# Of the first 1,000 and 2,000 flights, 4 and 12 never departed: counted with zcat, head and awk.
FIRST_1000 = expected(1000, 4)
FIRST_2000 = expected(2000, 12)


def fly(limit: int, url: str = "embedded://") -> subprocess.CompletedProcess[str]:
    return run_python("examples/flights.py", "--limit", str(limit), "--url", url)


async def leave_three_flights_behind(url: str) -> None:
    """Leave data behind like a demo that was killed."""
    config = load_config(ROOT / "config" / "demo.yaml", environ={"URL": url})
    async with Broker.create(config) as broker:
        for number in range(3):
            await broker.publish("departed", {"flight": number}, "flight.EWR.LAX")


def test_flights_add_up_on_the_built_in_broker() -> None:
    assert summary(fly(2000)) == FIRST_2000


def test_flights_add_up_on_the_server(served_url: str) -> None:
    assert summary(fly(2000, served_url)) == FIRST_2000


def test_flights_add_up_on_rabbitmq(rabbitmq_url: str) -> None:
    assert summary(fly(2000, rabbitmq_url)) == FIRST_2000


def test_flights_add_up_with_a_file_that_holds_others(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'broker.db'}"
    asyncio.run(leave_three_flights_behind(url))
    done = fly(1000, url)
    assert summary(done) == FIRST_1000
    assert "emptied the queues: 6 messages" in done.stderr


def test_flights_start_clean_and_leave_nothing_behind_on_rabbitmq(
    rabbitmq: RabbitMQ, rabbitmq_url: str
) -> None:
    asyncio.run(leave_three_flights_behind(rabbitmq_url))
    done = fly(1000, rabbitmq_url)
    assert summary(done) == FIRST_1000
    assert "emptied the queues: 6 messages" in done.stderr
    vhost = rabbitmq_url.rsplit("/", 1)[1]
    counts = rabbitmq.ctl("list_queues", "--vhost", vhost, "--no-table-headers", "name", "messages")
    assert sorted(counts.split()[::2]) == ["cemetery", "departures", "late-departures"]
    assert set(counts.split()[1::2]) == {"0"}


def test_flights_say_so_when_nobody_answers() -> None:
    done = run_python("examples/flights.py", "--url", "amqp://guest:secret@127.0.0.1:1/")
    assert done.returncode == 1
    assert "failed to connect to amqp://guest:***@127.0.0.1:1/" in done.stderr
    assert "Traceback" not in done.stderr


def test_progress_is_on_stderr_in_plain_lines_without_a_terminal() -> None:
    done = fly(500)
    assert done.returncode == 0
    assert "published 500, handled " in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
