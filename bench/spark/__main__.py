"""`python -m bench.spark [--only PART] [--messages N]`: a table, and JSON in build/."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
from pathlib import Path

from rich.console import Console

from bench.spark.ratios import Ratio, as_json, table
from spark.session import open_session

PARTS = ("starting", "jobs", "connector", "driver")
"""Modules of this folder, each with `measure(spark) -> Iterable[Ratio]`."""


def main() -> int:
    command = argparse.ArgumentParser(description="What Spark and the event log cost, as ratios.")
    command.add_argument("--only", choices=PARTS, help="measure this part only")
    command.add_argument("--messages", type=int, default=100_000, help="in the log of the jobs")
    command.add_argument("--json", type=Path, default=Path("build/bench-spark.json"))
    options = command.parse_args()
    console = Console()
    logging.getLogger("broker_client").setLevel(logging.ERROR)  # no warnings of the configuration
    spark = open_session("bench")
    ratios: list[Ratio] = []
    for part in (options.only,) if options.only else PARTS:
        name = f"bench.spark.{part}"
        if importlib.util.find_spec(name) is None:
            continue
        console.print(f"measuring {part} ...", style="dim")
        more = {"messages": options.messages} if part == "jobs" else {}
        for ratio in importlib.import_module(name).measure(spark, **more):
            console.print(f"  {ratio.name}: {ratio.value:.2f}", style="dim")
            ratios.append(ratio)
    console.print(table(ratios))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(as_json(ratios), indent=2) + "\n", encoding="utf-8")
    console.print(f"JSON in {options.json}", style="dim")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
