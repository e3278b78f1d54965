"""The command line of the pipeline."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

JOBS = {
    "compact": "JSON lines to Parquet, each event once; run again, it takes only what is new",
    "latency": "how long messages wait and are handled",
    "throughput": "events a minute, and what is left in each queue",
    "reliability": "redeliveries, time-outs, dead letters, and their causes",
    "poison": "messages that are tried again and again",
    "audit": "is every message accounted for? lost? handled twice?",
    "archive": "dead letters out of their queue into Parquet, for replay to publish again",
    "replay": "publish dead letters again; shows which unless --execute is given",
    "flights": "flights through Spark, the broker and its log, and does it add up?",
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="spark.pipeline", description="Runs the jobs over a delivery-event log."
    )
    commands = top.add_subparsers(dest="job", required=True, metavar="JOB")
    adders: dict[str, Callable[[argparse.ArgumentParser], None]] = {
        "poison": _poison_options,
        "audit": _audit_options,
        "archive": _archive_options,
        "replay": _replay_options,
        "flights": _flights_options,
    }
    for name, about in JOBS.items():
        command = commands.add_parser(name, help=about, description=about)
        if name not in ("flights", "archive"):
            command.add_argument(
                "--events",
                required=name != "replay",
                metavar="LOG",
                help="folder of the log, or of what compact made of it",
            )
        default = f"build/pipeline/{name}"
        command.add_argument(
            "--out",
            default=default,
            metavar="FOLDER",
            help=f"where to write Parquet (default {default})",
        )
        if name not in ("compact", "archive", "replay"):
            command.add_argument(
                "--plot", metavar="FILE", type=_plot_file, help="draw it: .png, .svg or .html"
            )
        command.add_argument(
            "--class-archive",
            metavar="FILE",
            type=Path,
            help="start from Java's classes in this file, in half the time; made when missing",
        )
        if name in ("latency", "throughput"):
            command.add_argument(
                "--window", default="1 minute", help="length of the time windows (1 minute)"
            )
        if name in ("throughput", "audit"):
            command.add_argument(
                "--as-of", metavar="TIME", help="end of the log (default: its last event)"
            )
        if name == "latency":
            command.add_argument(
                "--exact", action="store_true", help="sort all values instead of sketching them"
            )
        if name in adders:
            adders[name](command)
    return top


def _poison_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--attempts",
        type=int,
        default=3,
        metavar="N",
        help="so many deliveries without an ack (default 3)",
    )
    command.add_argument(
        "--consumers",
        type=int,
        default=3,
        metavar="N",
        help="or to so many different consumers (default 3)",
    )


def _audit_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--settle",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="younger messages are not called lost (default 60)",
    )


def _archive_options(command: argparse.ArgumentParser) -> None:
    broker = command.add_mutually_exclusive_group(required=True)
    broker.add_argument("--config", metavar="FILE", help="configuration of the broker")
    broker.add_argument(
        "--url-env", metavar="NAME", help="environment variable with the broker's address"
    )
    broker.add_argument(
        "--url", help="the address itself; a password in it shows in the list of processes"
    )
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--queue", metavar="NAME", help="the queue to empty")
    source.add_argument(
        "--subscription", metavar="NAME", help="with --config: the subscription that names it"
    )
    command.add_argument("--vhost", metavar="NAME", help="instead of the address's")
    command.add_argument(
        "--spool",
        metavar="FOLDER",
        help="where messages stay between their ack and the archive (default OUT/_spool)",
    )


def _replay_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--request",
        required=True,
        metavar="NAME",
        help="name of this replay, a part of the ids of its copies",
    )
    command.add_argument(
        "--reason",
        action="append",
        default=[],
        dest="reasons",
        help="only letters of this reason; may be given again",
    )
    command.add_argument(
        "--queue",
        action="append",
        default=[],
        dest="queues",
        help="only letters out of this queue; may be given again",
    )
    command.add_argument("--routing-key", metavar="PATTERN", help="SQL's LIKE")
    command.add_argument("--since", metavar="TIME", help="dead-lettered then or later")
    command.add_argument("--until", metavar="TIME", help="dead-lettered before")
    command.add_argument("--limit", type=int, metavar="N", help="the oldest N only")
    command.add_argument(
        "--archive", metavar="FOLDER", help="bodies and headers, as the job archive keeps them"
    )
    command.add_argument(
        "--log",
        metavar="FOLDER",
        help="log to write down in what was replayed (default: that of --events, "
        "unless it is compacted or remote)",
    )
    command.add_argument("--config", metavar="FILE", help="configuration of the broker")
    command.add_argument("--publication", metavar="NAME", help="publish through this publication")
    command.add_argument("--execute", action="store_true", help="really publish")


def _flights_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", type=int, metavar="N", help="the first N flights only")
    command.add_argument(
        "--url",
        default="embedded://",
        help="the broker (default: the built-in one); the demo's queues are emptied first",
    )


def _plot_file(name: str) -> str:
    if Path(name).suffix not in (".png", ".svg", ".html"):
        raise argparse.ArgumentTypeError(f"{name!r} is none of .png, .svg, .html")
    return name
