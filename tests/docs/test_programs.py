"""The programs in docs/testing.md and docs/aio-pika.md run as they stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from broker_client.config.loader import load_config
from tests.docs.documents import blocks, python_blocks
from tests.docs.processes import run_python
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.timeout(120)

TESTING = "docs/testing.md"
AIO_PIKA = "docs/aio-pika.md"


def run_tests(folder: Path) -> None:
    """The tests that docs/testing.md shows, beside the configuration that it shows."""
    shown = next(block for block in blocks(TESTING) if block.language == "yaml")
    (folder / "app.yaml").write_text(shown.text)
    [program] = python_blocks(TESTING)
    (folder / "test_app.py").write_text(program.text)
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    done = run_python("-m", "pytest", *options, "test_app.py", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_tests_of_a_program_pass_on_the_built_in_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_BROKER_URL", raising=False)
    run_tests(tmp_path)


def test_tests_of_a_program_pass_on_rabbitmq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rabbitmq: RabbitMQ
) -> None:
    vhost = rabbitmq.make_vhost()
    monkeypatch.setenv("TEST_BROKER_URL", rabbitmq.url(vhost))
    run_tests(tmp_path)
    rabbitmq.delete_vhost(vhost)
    assert "TEST_BROKER_URL" in os.environ


def test_program_for_people_from_celery_retries_and_dead_letters(tmp_path: Path) -> None:
    [program] = python_blocks(AIO_PIKA)
    (tmp_path / "program.py").write_text(program.text)
    done = run_python("program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == program.output


def test_configuration_for_a_queue_of_others_declares_nothing() -> None:
    shown = next(block for block in blocks(AIO_PIKA) if block.language == "yaml")
    queue = load_config(yaml.safe_load(shown.text)).vhosts["/"].queues["theirs"]
    assert (queue.assert_, queue.check) == (False, True)
