"""Processes that fork while a Broker is open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rabbitmq import RabbitMQ

ROOT = Path(__file__).parents[2]


def _run(url: str, how: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.client.forking_program", url, how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize(("how", "status"), [("exits", 7), ("returns", 0)])
def test_child_that_unwinds_its_parents_stack_does_not_disturb_the_parents_file(
    how: str, status: int, tmp_path: Path
) -> None:
    seen = _run(f"embedded://{tmp_path}/broker.db", how)
    assert seen == {"child": status, "in_order": True, "connects": 1}


def test_child_that_unwinds_its_parents_stack_does_not_disturb_the_parents_connection(
    rabbitmq: RabbitMQ,
) -> None:
    vhost = rabbitmq.make_vhost()
    seen = _run(rabbitmq.url(vhost), "exits")
    rabbitmq.delete_vhost(vhost)
    assert seen == {"child": 7, "in_order": True, "connects": 1}
