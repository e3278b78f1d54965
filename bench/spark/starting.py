"""Measures the start of a session with and without an archive of Java's classes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from bench.spark.ratios import Ratio

_ROUNDS = 3
_SESSION = """
import sys, time
from pathlib import Path
from spark.class_archive import ClassArchive
from spark.session import open_session

archive = ClassArchive(Path(sys.argv[1])) if len(sys.argv) > 1 else None
started = time.perf_counter()
session = open_session("bench", archive)
session.range(1000).count()
print(time.perf_counter() - started, flush=True)
if archive is not None:
    archive.finish(session)
"""
_ROOT = Path(__file__).resolve().parents[2]


def measure(spark: SparkSession) -> Iterator[Ratio]:
    """Session and first count, with an archive and without, in turns; `spark` is left alone."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "spark.jsa"
        _seconds(archive)  # which makes it
        pairs = [(_seconds(archive), _seconds()) for _ in range(_ROUNDS)]
        figures = {
            "with s": median(pair[0] for pair in pairs),
            "without s": median(pair[1] for pair in pairs),
            "archive MiB": archive.stat().st_size / 2**20,
        }
    value = figures["with s"] / figures["without s"]
    yield Ratio("session, first count: class archive / none", value, 0.6, True, figures)


def _seconds(*arguments: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SESSION, *map(str, arguments)],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])
