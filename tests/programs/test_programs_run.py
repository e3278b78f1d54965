"""The programs of docs/programs.md and docs/fastapi.md: `broker-client run`, ASGI under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from broker_client import Broker, Router
from broker_client.asgi import health, lifespan
from broker_client.errors import InvalidHandlerError, UnknownNameError
from tests.docs.documents import ROOT, blocks
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

pytestmark = pytest.mark.timeout(600)

DOCUMENTS = ("docs/programs.md", "docs/fastapi.md")
RABBITMQ = pytest.mark.rabbitmq
PATIENCE = 150.0  # seconds; a process of Python starts slowly on a busy machine
APP = """
vhosts:
  /:
    connection: "${BROKER_URL}"
    queues: [orders]
    publications:
      orders: {queue: orders}
    subscriptions:
      fulfil: {queue: orders}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the document, and their configuration."""
    (tmp_path / "app.yaml").write_text(APP)
    for block in (each for name in DOCUMENTS for each in blocks(name)):
        if block.language == "py":
            (tmp_path / block.text.split("\n")[0].removeprefix("# ")).write_text(block.text)
    return tmp_path


class Program:
    """A process and its output."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            # Empty is unset: unbuffered, the parts of a line of two workers would mingle.
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "BROKER_URL": url,
                "PYTHONUNBUFFERED": "",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._unseen: list[str] = []
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip())

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        """`count` lines that match and were not waited for before, in any order with others."""
        deadline = time.monotonic() + PATIENCE
        while len(found := [line for line in self._unseen if re.search(pattern, line)]) < count:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in:\n" + "\n".join(self.said)) from None
            self.said.append(line)
            self._unseen.append(line)
        for line in found[:count]:
            self._unseen.remove(line)
        return found[:count]

    def end(self) -> int:
        """Its status, after SIGTERM."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Any]:
    programs: list[Program] = []
    # A program started with nohup ignores SIGHUP, and so would its children.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(url: str, *arguments: str) -> Program:
        programs.append(Program(folder, url, *arguments))
        return programs[-1]

    yield start
    signal.signal(signal.SIGHUP, before)
    for program in programs:
        program.close()


def run(target: str = "app:router", *options: str) -> tuple[str, ...]:
    return ("-m", "broker_client", "run", target, *options)


@pytest.fixture
def rabbitmq_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    vhost = rabbitmq.make_vhost()
    yield rabbitmq.url(vhost)
    rabbitmq.delete_vhost(vhost)


@pytest.fixture
def served_url() -> Iterator[str]:
    with Served() as server:
        yield server.url()


async def publish(url: str, folder: Path, *ids: int) -> None:
    config = {"vhosts": {"/": {"connection": url, "queues": ["orders"]}}}
    async with Broker.create(config) as broker:
        await broker.publish_many("/orders", [{"id": number} for number in ids])


# --------------------------------------------------------------------------- broker-client run


async def test_program_handles_messages_and_ends_in_order_at_sigterm(
    start: Any, folder: Path, rabbitmq_url: str
) -> None:
    program = start(rabbitmq_url, *run())
    program.wait_for("running 1 subscriptions")
    await publish(rabbitmq_url, folder, 7)
    program.wait_for("^order 7$")
    assert program.end() == 0
    program.wait_for("ending")


MADE = """
from broker_client import Broker, Router

broker = Broker.create("app.yaml")

def router() -> Router:
    made = Router("app.yaml")

    @made.handle("fulfil")
    async def fulfil(order: dict[str, int]) -> None:
        print("plainly", order["id"], flush=True)

    return made

async def a_router() -> Router:
    return router()
"""
SHOVEL = """
vhosts:
  /:
    connection: "${BROKER_URL}"
    queues: [orders, copied]
    publications:
      copies: {queue: copied}
    subscriptions:
      fulfil: {queue: orders}
shovels:
  copy: {subscription: fulfil, publication: copies}
"""
ODD = """
from broker_client import Broker, Router, load_config

def needy(url: str) -> Router:
    return Router(url)

def nothing() -> None:
    pass

connected = Broker(load_config({"vhosts": {"/": {}}}))

def unopened() -> Broker:
    return connected
"""


@pytest.mark.parametrize("target", ["made:router", "made:a_router", "factory:create"])
async def test_program_that_a_function_makes_handles_messages_and_ends_in_order(
    start: Any, folder: Path, served_url: str, target: str
) -> None:
    (folder / "made.py").write_text(MADE)
    program = start(served_url, *run(target))
    program.wait_for("running 1 subscriptions")
    await publish(served_url, folder, 7)
    program.wait_for("^(plainly|order) 7$")
    assert program.end() == 0
    program.wait_for("ending")


async def test_program_of_a_broker_that_is_not_created_yet_moves_what_its_shovels_move(
    start: Any, folder: Path, served_url: str
) -> None:
    (folder / "made.py").write_text(MADE)
    (folder / "app.yaml").write_text(SHOVEL)
    program = start(served_url, *run("made:broker"))
    program.wait_for("running")
    await publish(served_url, folder, 7)
    config = {"vhosts": {"/": {"connection": served_url, "queues": ["copied"]}}}
    async with Broker.create(config) as broker, asyncio.timeout(PATIENCE):
        async for _, content, ack_or_nack in await broker.subscribe("/copied"):
            await ack_or_nack()
            assert content == {"id": 7}
            break
    assert program.end() == 0


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_program_whose_broker_does_not_answer_ends_at_a_signal(
    start: Any, signal_number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        program = start(f"amqp://127.0.0.1:{silent.getsockname()[1]}/", *run())
        connection, _ = silent.accept()
        with connection:
            program.process.send_signal(signal_number)
            assert program.process.wait(PATIENCE) == 0  # 1 if the connection timed out first
    program.wait_for("ending before the broker answered")


async def test_workers_share_the_work_and_one_that_is_killed_is_replaced(
    start: Any, folder: Path, rabbitmq_url: str
) -> None:
    program = start(rabbitmq_url, *run("app:router", "--workers", "2"))
    first = program.wait_for(r"worker \d is process (\d+)", 2)
    program.wait_for("running 1 subscriptions", 2)
    killed = int(first[0].split()[-1])
    os.kill(killed, signal.SIGKILL)
    program.wait_for(r"worker \d ended with status -9")
    [again] = program.wait_for(r"worker \d is process")
    program.wait_for("running 1 subscriptions")
    await publish(rabbitmq_url, folder, 1, 2)
    program.wait_for("^order", 2)
    assert program.end() == 0
    pids = [int(first[1].split()[-1]), int(again.split()[-1])]
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


async def test_workers_end_when_their_supervisor_is_killed(start: Any, rabbitmq_url: str) -> None:
    program = start(rabbitmq_url, *run("app:router", "--workers", "2"))
    program.wait_for("running 1 subscriptions", 2)
    program.process.kill()
    program.wait_for("ending", 2)


SLOW = """
import asyncio, os
from pathlib import Path
from broker_client import Router

router = Router("app.yaml")

@router.handle("fulfil")
async def fulfil(order: dict[str, int]) -> None:
    print("begun", order["id"], "by", os.getpid(), flush=True)
    while not Path("finish").exists():
        await asyncio.sleep(0.02)
    print("done", order["id"], flush=True)
"""


@pytest.mark.parametrize("server", ["served", pytest.param("rabbitmq", marks=RABBITMQ)])
async def test_worker_killed_in_mid_message_loses_nothing(
    start: Any, folder: Path, server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    (folder / "slow.py").write_text(SLOW)
    program = start(url, *run("slow:router", "--workers", "2"))
    program.wait_for("running 1 subscriptions", 2)
    await publish(url, folder, 1, 2, 3, 4)
    begun = program.wait_for("^begun", 4)
    killed = int(begun[0].split()[-1])
    of_killed = [line.split()[1] for line in begun if line.endswith(f" {killed}")]
    os.kill(killed, signal.SIGKILL)
    again = program.wait_for("^begun", len(of_killed))
    assert sorted(line.split()[1] for line in again) == sorted(of_killed)
    program.wait_for(r"worker \d ended with status -9; again in 0.5 s")
    (folder / "finish").touch()
    done = program.wait_for("^done", 4)
    assert sorted(line.split()[1] for line in done) == ["1", "2", "3", "4"]
    assert program.end() == 0


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
async def test_program_ends_in_order_at_a_signal_and_at_once_at_the_second(
    start: Any, folder: Path, rabbitmq_url: str, options: tuple[str, ...]
) -> None:
    (folder / "slow.py").write_text(SLOW)
    program = start(rabbitmq_url, *run("slow:router", *options))
    program.wait_for("running 1 subscriptions", 2 if options else 1)
    await publish(rabbitmq_url, folder, 1)
    program.wait_for("^begun 1")
    program.process.terminate()
    program.wait_for("ending", 2 if options else 1)
    program.process.terminate()
    assert program.process.wait(PATIENCE) == (1 if options else -signal.SIGTERM)

    program = start(rabbitmq_url, *run("slow:router", *options))
    program.wait_for("running 1 subscriptions", 2 if options else 1)
    program.wait_for("^begun 1")  # delivered again
    program.process.terminate()
    program.wait_for("ending", 2 if options else 1)
    (folder / "finish").touch()
    program.wait_for("^done 1")
    assert program.process.wait(PATIENCE) == 0


def test_ctrl_c_of_a_terminal_ends_workers_in_order_although_they_get_it_too(
    start: Any, rabbitmq_url: str
) -> None:
    program = start(rabbitmq_url, *run("app:router", "--workers", "2"))
    workers = [line.split()[-1] for line in program.wait_for("is process", 2)]
    program.wait_for("running 1 subscriptions", 2)
    for pid in [*workers, program.process.pid]:
        os.kill(int(pid), signal.SIGINT)
    assert program.process.wait(PATIENCE) == 0
    program.wait_for("ending", 2)


def test_workers_are_started_again_at_sighup(start: Any, rabbitmq_url: str) -> None:
    program = start(rabbitmq_url, *run("app:router", "--workers", "2"))
    program.wait_for("running 1 subscriptions", 2)
    program.process.send_signal(signal.SIGHUP)
    program.wait_for("SIGHUP: starting again")
    program.wait_for("ending", 2)
    program.wait_for("running 1 subscriptions", 2)
    assert program.end() == 0


def test_reload_without_its_package_names_the_extra(start: Any, folder: Path) -> None:
    (folder / "without.py").write_text(
        "import sys, runpy\nsys.modules['watchfiles'] = None\n"
        "sys.argv[1:] = ['run', 'app:router', '--reload']\n"
        "runpy.run_module('broker_client', run_name='__main__', alter_sys=True)\n"
    )
    program = start("embedded://", "without.py")
    assert program.process.wait(PATIENCE) == 1
    program.wait_for(r"--reload needs watchfiles: .*\[reload\]")


def test_workers_that_cannot_start_end_the_program(start: Any) -> None:
    program = start("amqp://127.0.0.1:1/", *run("app:router", "--workers", "2"))
    assert program.process.wait(PATIENCE) == 1
    program.wait_for("failed 3 times to start; ending")


def test_changed_file_starts_the_program_again(start: Any, folder: Path) -> None:
    program = start(f"embedded://{folder}/broker.db", *run("app:router", "--reload"))
    program.wait_for("running 1 subscriptions")
    module = folder / "orders.py"
    good = module.read_text()
    module.write_text("this is no Python\n")
    program.wait_for("orders.py changed: starting again")
    program.wait_for("SyntaxError")
    program.wait_for("ended with status 1; waiting for a change")
    module.write_text(good.replace('"fulfil"', '"/orders"'))
    program.wait_for("running 1 subscriptions")
    assert program.end() == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app", "write MODULE:NAME"),
        ("nothing:router", "there is no module 'nothing'"),
        ("app:nothing", "module 'app' has no 'nothing'; needed is a Router with a configuration"),
        ("orders:router", "a Router without a configuration"),
        ("app:orders", "app:orders is or returns an object of the type module"),
        ("odd:needy", "odd:needy is called without arguments, but takes some"),
        ("odd:nothing", "odd:nothing is or returns an object of the type NoneType"),
        ("odd:connected", "odd:connected is a Broker that exists already"),
        ("odd:unopened", "this Broker was not opened"),
    ],
)
def test_target_that_is_no_program_is_explained(
    start: Any, folder: Path, target: str, said: str
) -> None:
    (folder / "odd.py").write_text(ODD)
    program = start("embedded://", *run(target))
    assert program.process.wait(PATIENCE) == 1
    [line] = program.wait_for(re.escape(said))
    assert "Traceback" not in "".join([*program.said, line])


# --------------------------------------------------------------------------- ASGI


def ask(port: int, path: str, body: object = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with contextlib.closing(urllib.request.urlopen(request, timeout=PATIENCE)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return error.code, error.read()


def test_application_under_uvicorn_publishes_handles_answers_probes_and_ends(
    start: Any, folder: Path
) -> None:
    url = f"embedded://{folder}/broker.db"
    server = start(url, "-m", "uvicorn", "web:app", "--port", "0")
    [line] = server.wait_for("Uvicorn running on")
    port = int(re.search(r":(\d+) ", line)[1])  # type: ignore[index]
    assert ask(port, "/orders", {"id": 7}) == (202, b"")
    server.wait_for("^order 7$")
    status, body = ask(port, "/health/ready")
    assert (status, json.loads(body)["ready"]) == (200, True)
    assert ask(port, "/health/live")[0] == 200
    assert ask(port, "/health/other")[0] == 404
    assert server.end() in (0, -signal.SIGTERM)  # uvicorn raises the signal again at its end
    server.wait_for("Application shutdown complete")


def test_api_of_fastapi_publishes_and_handles(start: Any, folder: Path) -> None:
    server = start(f"embedded://{folder}/broker.db", "-m", "uvicorn", "api:app", "--port", "0")
    [line] = server.wait_for("Uvicorn running on")
    port = int(re.search(r":(\d+) ", line)[1])  # type: ignore[index]
    assert ask(port, "/orders", {"id": 7})[0] == 202
    server.wait_for("^order 7$")
    assert ask(port, "/orders", {"id": "seven"})[0] == 422
    assert ask(port, "/health/ready")[0] == 200
    assert server.end() in (0, -signal.SIGTERM)


async def test_api_of_fastapi_is_tested_with_another_broker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    api = importlib.import_module("api")
    vhost = {"queues": ["orders"], "publications": {"orders": {"queue": "orders"}}}
    config = {"vhosts": {"/": vhost}}
    async with Broker.create(config) as broker:
        api.app.dependency_overrides[api.broker_of] = lambda: broker
        transport = httpx.ASGITransport(api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"content-type": "application/json"}
            answer = await client.post("/orders", content=b'{"id": 7}', headers=headers)
        assert answer.status_code == 202
        assert broker.nodes.node().stats().queues[0].ready == 1
    for name in ("api", "orders"):
        sys.modules.pop(name, None)


def test_application_whose_broker_does_not_answer_does_not_start_under_uvicorn(start: Any) -> None:
    server = start("amqp://127.0.0.1:1/", "-m", "uvicorn", "web:app", "--port", "0")
    assert server.process.wait(PATIENCE) == 3
    server.wait_for("nothing listens there")
    server.wait_for("Application startup failed")


async def test_failed_start_says_so_in_the_protocol() -> None:
    from starlette.applications import Starlette

    app = Starlette(lifespan=lifespan({"vhosts": {"/": {"connection": "amqp://127.0.0.1:1/"}}}))
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ConnectionError):
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]


async def test_health_without_a_broker_is_no_health() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {}

    await health({"type": "http", "method": "GET", "path": "/ready"}, receive, send)
    assert sent[0]["status"] == 503


# --------------------------------------------------------------------------- routers


async def test_router_adds_its_middleware_before_its_handlers() -> None:
    router, more = Router(), Router()
    steps: list[str] = []

    @router.handle("/orders")
    async def orders(content: Any) -> str:
        steps.append("handler")
        return "done"

    @more.middleware("handle")
    async def around(call: Any, call_next: Any) -> Any:
        steps.append("middleware")
        return await call_next(call)

    router.include(more)
    assert await orders(1) == "done"  # as it was
    steps.clear()
    async with Broker.create({"vhosts": {"/": {"queues": ["orders"]}}}) as broker:
        broker.include(router)
        assert (await broker.request("/orders", 1)).content == "done"
    assert steps == ["middleware", "handler"]


async def test_router_with_an_unknown_name_is_refused_as_it_is_included() -> None:
    router = Router()

    @router.handle("ordres")
    async def orders(content: Any) -> None: ...

    with pytest.raises(InvalidHandlerError, match="name the subscription"):
        router.handle(orders)  # type: ignore[arg-type]
    async with Broker.create({"vhosts": {"/": {"queues": ["orders"]}}}) as broker:
        with pytest.raises(UnknownNameError, match="ordres"):
            broker.include(router)
