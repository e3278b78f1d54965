"""Frames of Spark Connect are refused; the error says what to do instead."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.left_out import IN_CI

ROOT = Path(__file__).parents[3]


def test_frame_of_a_spark_connect_session_is_refused_with_what_to_do() -> None:
    if importlib.util.find_spec("grpc") is None and not IN_CI:
        pytest.skip("pyspark[connect] is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.driver.connect_session"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["module"] == "pyspark.sql.connect.dataframe"
    assert "Spark Connect" in said["publish_frame"]
    assert 'format("broker")' in said["publish_frame"]
    assert 'format("broker")' in said["foreach_batch"]
