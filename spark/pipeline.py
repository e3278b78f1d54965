"""Runs the jobs over a delivery-event log.

    python -m spark.pipeline JOB --events LOG --out FOLDER [--plot FILE.png|.html]
    spark-submit spark/pipeline.py JOB --events LOG --out FOLDER

Each job prints tables and writes Parquet to FOLDER; `--plot` draws the results that are clearer as
a picture.
`flights` and `archive` need no log. See spark/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and not __package__:  # run by path: by spark-submit
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rich.console import Console

from broker_client.errors import BrokerClientError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.tables import Tables

_WIDTH = 120  # characters, where the output is not a terminal


def tables_of(
    job: str, events: DataFrame, options: argparse.Namespace
) -> list[tuple[str, Callable[[Tables], DataFrame]]]:
    """The results of a job, by name, each made of those before it as they were written."""
    from spark import jobs

    if job == "latency":
        found = jobs.latency(events, window=options.window, exact=options.exact)
        return [("latency", lambda _: found)]
    if job == "throughput":
        counts = jobs.throughput(events, window=options.window)
        depth = jobs.backlog(events, window=options.window, as_of=options.as_of)
        return [
            ("throughput", lambda _: counts.orderBy("window", "queue", "event")),
            ("backlog", lambda _: depth),
        ]
    if job == "reliability":
        rates, why = jobs.reliability(events), jobs.causes(events)
        return [
            ("reliability", lambda _: rates.orderBy("queue", "subscription")),
            ("causes", lambda _: why.orderBy("queue", "event", "reason", "error_class")),
        ]
    if job == "poison":
        tried = jobs.poison(events, attempts=options.attempts, consumers=options.consumers)
        return [
            ("poison", lambda _: tried),
            ("poison_groups", lambda written: jobs.poison_groups(written["poison"])),
        ]
    problems = jobs.audit(events, settle=options.settle, as_of=options.as_of)
    return [
        ("audit", lambda _: problems),
        ("audit_summary", lambda written: jobs.audit_summary(events, written["audit"])),
    ]


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the job; returns the exit status."""
    from spark import archiving, replaying
    from spark.class_archive import ClassArchive
    from spark.session import open_session

    if options.job in ("archive", "replay"):
        (archiving if options.job == "archive" else replaying).check(options)
    events_path = getattr(options, "events", None)
    if events_path and "://" not in events_path and not Path(events_path).is_dir():
        raise FileNotFoundError(f"there is no log at {events_path}")
    archive = ClassArchive(options.class_archive) if options.class_archive else None
    spark = open_session(f"broker_client {options.job}", archive)
    try:
        return _run(spark, options, console)
    finally:
        if archive is not None and archive.finish(spark):
            console.print(f"classes archived in {archive.path}", style="dim")


def _run(spark: SparkSession, options: argparse.Namespace, console: Console) -> int:
    from spark import archiving, flights, plots, replaying
    from spark.logs import compact_to, load
    from spark.tables import show, show_counts, write

    out = Path(options.out)
    if options.job == "flights":
        return flights.run(spark, options, console)
    if options.job == "archive":
        return archiving.run(spark, options, console)
    if options.job == "compact":
        from broker_client.spark.event_log import corrupt_lines, read_events, whole

        compact_to(spark, options.events, out)
        compacted = whole(read_events(spark, out, format="parquet"))
        bad = corrupt_lines(read_events(spark, options.events, format="json"))
        counts = {"events": compacted.count(), "lines_that_are_no_events": bad}
        show_counts(console, f"compacted into {out}", counts)
        return 0
    if options.job == "replay":
        named = options.events
        events = load(spark, named, console) if named else None
        return replaying.run(spark, events, options, console)
    events = load(spark, options.events, console)
    written = write(tables_of(options.job, events, options), out)
    for name, table in written.items():
        if name == "audit_summary":
            row = table.first()
            assert row is not None, "an aggregate without groups has one row"
            show_counts(console, "audit summary", row.asDict())
        else:
            show(console, name.replace("_", " "), table)
    console.print(f"written to {out}", style="dim")
    if options.plot:
        plots.draw(options.job, written, Path(options.plot))
        console.print(f"drawn in {options.plot}", style="dim")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    from spark.arguments import parser
    from spark.session import NoJavaError

    options = parser().parse_args(arguments)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    try:
        return run(options, console)
    except (BrokerClientError, NoJavaError, FileNotFoundError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
