"""`flights`: real input end to end. Checks that what Spark publishes arrives and is in the log.

Spark reads a month of flights, computes departures and mean delay a route and hour of day, and
publishes one message for each late one through a publication of `config/demo.yaml`, whose
subscriptions handle them on the built-in broker. The delivery-event log of that run then goes
through `compact`, `latency`, `reliability` and `audit`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from broker_client import AckOrNack, Broker, Message, load_config
from broker_client.config import BrokerConfig, EventLogConfig
from spark.logs import compact_to
from spark.tables import show, show_counts, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from broker_client.spark import FrameReport

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "examples" / "data" / "flights-2013-01.csv.gz"
CONFIG = ROOT / "config" / "demo.yaml"
PUBLICATION = "departed"
SUBSCRIPTIONS = ("departures", "late")
LATE_MINUTES = 15.0
"""A route is late in an hour of the day when its flights leave so late on average."""
KNOWN_FLIGHTS = {"EWR": 9893, "JFK": 9161, "LGA": 7950}  # see examples/data/README.md
_PATIENCE = 60.0  # seconds for the handlers to see all that was published

_CSV = (
    "time_hour timestamp, carrier string, flight int, tailnum string, origin string, dest string, "
    "dep_time int, sched_dep_time int, dep_delay int, arr_delay int, air_time int, distance int"
)


def read_flights(spark: SparkSession, limit: int | None) -> DataFrame:
    """The flights of the file, at most `limit`."""
    flights = spark.read.csv(str(DATA), schema=_CSV, header=True, nullValue="NA", mode="FAILFAST")
    return flights if limit is None else flights.limit(limit)


def routes_by_hour(flights: DataFrame) -> DataFrame:
    """A row a route and hour of day (scheduled, local): flights, departures, mean delay."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

    hour = F.floor(F.col("sched_dep_time") / 100).cast("int")
    return (
        flights.groupBy("origin", "dest", hour.alias("hour"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_time").alias("departures"),
            F.round(F.avg("dep_delay"), 2).alias("mean_delay"),
        )
        .orderBy("origin", "dest", "hour")
    )


def late_routes(routes: DataFrame) -> DataFrame:
    """The messages: the late rows of `routes_by_hour`, with an id and a routing key."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

    return routes.filter(F.col("mean_delay") > LATE_MINUTES).select(
        F.concat_ws("-", F.lit("late"), "origin", "dest", F.lpad("hour", 2, "0")).alias(
            "message_id"
        ),
        F.concat_ws(".", F.lit("flight"), "origin", "dest").alias("routing_key"),
        F.struct(*routes.columns).alias("body"),
    )


@dataclass
class Handled:
    """What the subscriptions saw, by message id."""

    seen: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {name: {} for name in SUBSCRIPTIONS}
    )
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def subscribe(self, broker: Broker) -> None:
        """Start to handle messages; those of an earlier run are dropped."""
        await broker.purge()
        for name in SUBSCRIPTIONS:
            await broker.subscribe(name, self._handler(name))

    def _handler(self, name: str) -> Any:
        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            self.seen[name][message.message_id or ""] = content
            self._changed.set()
            await ack_or_nack()

        return handle

    async def wait(self, count: int) -> bool:
        """True once every subscription has seen `count` messages."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while min(map(len, self.seen.values())) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


def publish(late: DataFrame, config: BrokerConfig, log: Path | None) -> tuple[FrameReport, Handled]:
    """Publish from the driver and handle the messages in the same process.

    Args:
        log: event log of the client, for a broker that does not write one.
    """
    from broker_client.spark import DriverPublisher

    handled = Handled()
    with DriverPublisher(config, event_log=log) as publisher:
        publisher.run(handled.subscribe)
        report = publisher.publish_frame(
            late, PUBLICATION, routing_key="routing_key", progress=False, check=False
        )
        publisher.run(lambda _: handled.wait(report.confirmed), timeout=_PATIENCE + 10)
    return report, handled


def demo_config(url: str, log: Path) -> BrokerConfig:
    """The demo's configuration; a built-in broker writes its delivery-event log to `log`."""
    config = load_config(CONFIG, environ={"URL": url})
    node = config.node.model_copy(update={"event_log": EventLogConfig(path=str(log))})
    return config.model_copy(update={"node": node})


def problems(
    report: FrameReport,
    handled: Handled,
    late: Mapping[str, Any],
    summary: Mapping[str, int],
    airports: Mapping[str, int],
    known: Mapping[str, int],
) -> list[str]:
    """The inconsistencies found, as sentences. `late` are the messages that Spark made, by id."""
    total = len(late)
    wanted = [
        ("messages were published", report.published, total),
        ("messages were confirmed", report.confirmed, total),
        ("messages were published, says the log", summary["published"], total),
        ("messages were confirmed, says the log", summary["confirmed"], total),
        ("messages were handled, says the log", summary["handled"], total),
        ("messages were lost", summary["lost"], 0),
        ("messages were handled twice without a reason", summary["duplicates_unexplained"], 0),
        ("messages came out of a queue into which none went", summary["never_enqueued"], 0),
        ("events are missing in the log", summary["events_missing"], 0),
        *((f"flights left {name}", airports.get(name, 0), n) for name, n in known.items()),
    ]
    for name, seen in handled.seen.items():
        wanted.append((f"messages were handled by {name}", len(seen), total))
        wrong = sum(content != late.get(key) for key, content in seen.items())
        wanted.append((f"messages reached {name} changed", wrong, 0))
    return [f"{got:,} {what}, not {want:,}." for what, got, want in wanted if got != want]


def run(spark: SparkSession, options: argparse.Namespace, console: Console) -> int:
    """The whole pipeline; returns 1 when it does not add up."""
    from broker_client.spark.event_log import read_events, whole
    from spark import drawing, jobs, plots

    out = Path(options.out)
    for name in ("log", "events"):  # of an earlier run
        shutil.rmtree(out / name, ignore_errors=True)
    flights = read_flights(spark, options.limit)
    airports = {row["origin"]: row["count"] for row in flights.groupBy("origin").count().collect()}
    routes = write([("routes", lambda _: routes_by_hour(flights))], out)["routes"]
    late = late_routes(routes)
    expected = {row["message_id"]: row["body"].asDict() for row in late.collect()}
    console.print(f"{sum(airports.values()):,} flights, {routes.count():,} routes and hours, "
                  f"{len(expected):,} of them late: publishing these")  # fmt: skip

    config = demo_config(options.url, out / "log")
    built_in = options.url.startswith("embedded:")
    report, handled = publish(late, config, None if built_in else out / "log")
    compact_to(spark, out / "log", out / "events")
    events = whole(read_events(spark, out / "events"))
    tables = write(
        [
            ("latency", lambda _: jobs.latency(events, window="1 hour", exact=True)),
            ("reliability", lambda _: jobs.reliability(events)),
            ("causes", lambda _: jobs.causes(events)),
            ("audit", lambda _: jobs.audit(events, settle=0.0)),
            ("audit_summary", lambda written: jobs.audit_summary(events, written["audit"])),
        ],
        out,
    )
    show(console, "the latest routes", routes.orderBy("mean_delay", ascending=False).limit(8))
    for name in ("latency", "reliability", "causes", "audit"):
        show(console, name, tables[name])
    row = tables["audit_summary"].first()
    assert row is not None, "an aggregate without groups has one row"
    summary = row.asDict()
    known = {} if options.limit is not None else KNOWN_FLIGHTS
    wrong = problems(report, handled, expected, summary, airports, known)
    result = {
        "flights": airports,
        "published": report.published,
        "confirmed": report.confirmed,
        "handled": len(set.union(*map(set, handled.seen.values()))),
        "lost": summary["lost"],
        "duplicates_unexplained": summary["duplicates_unexplained"],
        "events": events.count(),
        "adds_up": not wrong,
    }
    counts = {**result, **airports, "adds_up": "no" if wrong else "yes"}
    del counts["flights"]
    show_counts(console, "report", counts)
    if options.plot:
        rows = {
            "routes": [each.asDict() for each in routes.collect()],
            "latency": [each.asDict() for each in tables["latency"].collect()],
        }
        drawing.save(plots.flights(rows, result), Path(options.plot))
        console.print(f"drawn in {options.plot}", style="dim")
    for sentence in wrong:
        console.print(sentence, style="red", markup=False)
    console.print(json.dumps(result), markup=False, soft_wrap=True)
    return 1 if wrong else 0
