"""The first program of docs/spark.md works as documented."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.queues import Queues, numbered, sorted_ids
from tests.support.served import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "spark" / "examples" / "orders.py"


def test_program_of_the_document_is_the_example() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    assert f"```python\n{PROGRAM.read_text()}```\n" in text


def test_orders_come_out_of_the_queue_that_the_example_makes(
    spark: SparkSession,
    queues: Queues,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), queues.url, str(tmp_path)])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert "1000 orders in the table" in capsys.readouterr().out
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted_ids(rows) == sorted(numbered(1000, "order-"))
    assert all(row["message_id"] == f"order-{row['text']}" for row in rows)
    assert queues.depth("orders") == 0


def test_the_same_program_runs_against_the_built_in_broker_on_a_port(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Served(data=tmp_path / "broker.db") as served:
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), served.url(), str(tmp_path)])
        runpy.run_path(str(PROGRAM), run_name="__main__")
        assert "1000 orders in the table" in capsys.readouterr().out
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted_ids(rows) == sorted(numbered(1000, "order-"))
