"""The pipeline command, run in this process, and its output."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from spark import pipeline
from spark.arguments import parser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit status and output of the command."""
    console = Console(file=io.StringIO(), width=120)
    status = pipeline.run(parser().parse_args([str(each) for each in arguments]), console)
    assert isinstance(console.file, io.StringIO)
    return status, console.file.getvalue()


def parquet(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """The rows of a table."""
    return [row.asDict() for row in spark.read.parquet(str(folder)).collect()]
