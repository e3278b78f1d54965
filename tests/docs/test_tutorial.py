"""The service of docs/tutorial.md is made and run; docs/handlers.md and the first page run, too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.docs.documents import blocks
from tests.docs.fragments import check_fragments
from tests.docs.processes import run_python
from tests.support.eventually import eventually
from tests.support.own_server import free_port
from tests.support.served import Served

pytestmark = pytest.mark.timeout(120)
TUTORIAL = "docs/tutorial.md"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the files of the tutorial."""
    for block in blocks(TUTORIAL):
        if named := re.match(r"# ([\w.-]+)\n", block.text):
            (tmp_path / named[1]).write_text(block.text)
    return tmp_path


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


def test_tests_of_the_tutorial_pass(shop: Path) -> None:
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=shop)
    assert "3 passed" in done.stdout, done.stdout


def test_configuration_of_the_tutorial_has_no_warning(shop: Path) -> None:
    done = run_python("-m", "broker_client", "check", "--strict", "shop.yaml", cwd=shop)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def running(shop: Path, port: int, url: str) -> Iterator[Path]:
    """The API and the worker in processes of their own; gives the file that they print to."""
    environment = {**os.environ, "BROKER_URL": url}
    api = ("-m", "uvicorn", "api:app", "--port", str(port))
    worker = ("-m", "broker_client", "run", "worker:router")
    printed = shop / "out.txt"
    with printed.open("w") as out:
        processes = [
            subprocess.Popen(
                (sys.executable, *command), cwd=shop, env=environment, stdout=out, stderr=out
            )
            for command in (api, worker)
        ]
        try:
            yield printed
        finally:
            for process in processes:
                process.terminate()
            statuses = [process.wait(30) for process in processes]
    assert statuses[1] == 0  # uvicorn ends by the signal again, once it has ended in order


async def test_api_and_worker_of_the_tutorial_run_on_a_served_broker(
    shop: Path, served: Served
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with running(shop, port, served.url()) as printed:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:

            async def ready() -> bool:
                try:
                    return (await client.get("/health/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(ready, timeout=60)
            answer = await client.post("/orders", json={"id": 7, "city": "Bergen"})
            assert (answer.status_code, answer.json()) == (202, {"id": 7})
            assert (await client.post("/orders", json={"id": 7})).status_code == 422
        await eventually(lambda: "shipped order 7 to Bergen" in printed.read_text(), timeout=60)


async def test_fragments_of_the_page_on_handlers_print_what_it_shows() -> None:
    await check_fragments("docs/handlers.md", {})


def test_first_page_of_the_site_runs(tmp_path: Path) -> None:
    [program] = [block.text for block in blocks("docs/index.md") if block.language == "py"]
    (tmp_path / "hello.py").write_text(program)
    done = run_python("hello.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "cooking {'pizza': 2}\n"), done.stderr
