"""The programs in docs/testing.md and docs/aio-pika.md run as they stand."""

from __future__ import annotations

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


def run_tests(folder: Path, *options: str) -> str:
    """The tests that docs/testing.md shows, beside the configuration and settings that it shows;
    returns the last line of pytest."""
    shown = {block.language: block.text for block in blocks(TESTING)}
    (folder / "app.yaml").write_text(shown["yaml"])
    (folder / "pytest.ini").write_text(shown["ini"])
    (folder / "test_app.py").write_text(shown["python"])
    options = ("-q", "-p", "no:cacheprovider", *options)
    done = run_python("-m", "pytest", *options, "test_app.py", cwd=folder)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_tests_of_a_program_pass_on_the_built_in_broker(tmp_path: Path) -> None:
    assert "4 passed" in run_tests(tmp_path)


def test_tests_of_a_program_pass_on_rabbitmq(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    vhost = rabbitmq.make_vhost()
    assert "3 passed, 1 skipped" in run_tests(tmp_path, "--broker-url", rabbitmq.url(vhost))
    rabbitmq.delete_vhost(vhost)


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
