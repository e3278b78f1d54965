"""The measurements of docs/core.md can be repeated."""

from __future__ import annotations

import pytest

from tests.docs.processes import run_python


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("module", "options", "row"),
    [
        ("heaps", ["--most", "1000", "--rounds", "1"], "line and heap (in use)"),
        ("latency", ["--samples", "2000"], "our buckets (in use)"),
        ("rates", ["--messages", "2000", "--most", "1000", "--rounds", "1"], "settle, in order"),
        ("scan", ["--most", "10"], "random sampling"),
    ],
)
def test_measurement_runs_and_prints_its_table(module: str, options: list[str], row: str) -> None:
    done = run_python("-m", f"bench.core.{module}", *options)
    assert done.returncode == 0, done.stderr
    assert row in done.stdout
