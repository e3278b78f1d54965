"""The pipeline command: its output, files, pictures and errors."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker_client.spark import FrameReport
from broker_client.spark.event_log import read_events
from spark import drawing, flights, pipeline, plots
from tests.spark.jobs.builders import Lines, write_log
from tests.spark.pipeline.command import parquet, run
from tests.spark.queues import Queues

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    made = Lines()
    for number in range(5):
        made.stay(f"m{number}", "a", float(number), wait=0.01, handle=0.02)
    made.add("published", 1.0, "bad", published_at=1.0)
    at = {"queue": "a", "published_at": 1.0, "enqueued_at": 1.0}
    made.add("enqueued", 1.0, "bad", **at)
    made.add("confirmed", 1.0, "bad", published_at=1.0)
    for attempt in (1, 2, 3):
        made.add("delivered", 1.0 + attempt, "bad", attempt=attempt, redelivered=attempt > 1, **at)
        made.add("nacked", 1.5 + attempt, "bad", attempt=attempt, reason="rejected", **at)
    made.add("dead_lettered", 5.0, "bad", attempt=3, reason="rejected", routing_key="k", **at)
    folder = write_log(tmp_path / "log", made.lines)
    with (folder / "dt=2026-01-01" / "node=n1" / "1-1.jsonl").open("a") as file:
        file.write("not an event\n")
    return folder


def test_a_job_prints_tables_writes_parquet_and_draws(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    out, picture = tmp_path / "out", tmp_path / "pictures" / "audit.html"
    status, printed = run("audit", "--events", log, "--out", out, "--plot", picture)
    assert status == 0
    assert "1 lines are not events" in printed
    assert "audit summary" in printed
    (summary,) = parquet(spark, out / "audit_summary")
    assert (summary["published"], summary["confirmed"], summary["handled"]) == (6, 6, 5)
    assert (summary["dead_lettered"], summary["lost"]) == (1, 0)
    assert "<svg" in picture.read_text()


def test_a_job_gives_the_same_from_what_compact_made(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    status, printed = run("compact", "--events", log, "--out", tmp_path / "events")
    assert status == 0
    assert "lines that are no events" in printed
    run("reliability", "--events", log, "--out", tmp_path / "a")
    run("reliability", "--events", tmp_path / "events", "--out", tmp_path / "b")
    for table in ("reliability", "causes"):
        assert parquet(spark, tmp_path / "a" / table) == parquet(spark, tmp_path / "b" / table)


def test_a_replay_is_dry_until_told_and_then_done_once(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    letter = {"message_id": "bad", "body": base64.b64encode(b'{"id":7}').decode()}
    (archive / "1.jsonl").write_text(json.dumps(letter) + "\n")
    config = tmp_path / "app.yaml"
    config.write_text(
        "vhosts: {/: {queues: [again], publications: {again: {queue: again, confirm: true}}}}\n"
    )
    command = ["replay", "--events", str(log), "--out", str(tmp_path / "out"), "--request", "r1"]
    status, printed = run(*command)
    assert status == 0
    assert "A dry run" in printed
    assert "replay-bad-r1" in printed
    assert not (tmp_path / "out" / "manifest").exists()

    execute = [*command, "--archive", str(archive), "--config", str(config)]
    execute += ["--publication", "again", "--execute"]
    status, printed = run(*execute)
    assert status == 0
    assert "1 of 1 published and confirmed" in printed
    (done,) = parquet(spark, tmp_path / "out" / "manifest")
    assert (done["message_id"], done["replay_id"]) == ("bad", "replay-bad-r1")

    status, printed = run(*execute)
    assert status == 0
    assert "dead letters to replay: nothing" in printed


def test_a_replay_without_bodies_cannot_be_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["replay", "--events", str(tmp_path), "--request", "r1", "--execute"]
    assert pipeline.main(arguments) == 1
    assert "--archive" in capsys.readouterr().err


def test_a_replay_through_an_unknown_publication_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "app.yaml"
    config.write_text("vhosts: {/: {queues: [again], publications: {again: {queue: again}}}}\n")
    arguments = ["replay", "--archive", str(tmp_path), "--request", "r1", "--execute"]
    arguments += ["--config", str(config), "--publication", "agian"]
    assert pipeline.main(arguments) == 1
    assert "again" in capsys.readouterr().err


def test_a_replay_of_nothing_named_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["replay", "--request", "r1"]) == 1
    assert "--archive" in capsys.readouterr().err


def test_a_log_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["latency", "--events", "nowhere"]) == 1
    assert "there is no log at nowhere" in capsys.readouterr().err


def test_a_picture_of_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pipeline.main(["latency", "--events", ".", "--plot", "latency.bmp"])
    assert "none of .png, .svg, .html" in capsys.readouterr().err


def test_the_command_runs_by_path_from_anywhere(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "spark" / "pipeline.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": ""},
    )
    assert ended.returncode == 0, ended.stderr
    assert "poison" in ended.stdout


# --------------------------------------------------------------------------- flights


def test_flights_add_up_on_a_slice(spark: SparkSession, tmp_path: Path) -> None:
    picture = tmp_path / "flights.png"
    out = tmp_path / "out"
    # Published and confirmed once; enqueued, delivered and acked in two queues.
    flights_add_up(spark, out, 8, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_flights_add_up_on_a_slice_through_rabbitmq(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    # A client does not see enqueued messages.
    printed = flights_add_up(spark, tmp_path, 6, "--url", queues.url)
    assert "guest:guest" not in printed
    assert [queues.depth(name) for name in ("departures", "late-departures", "cemetery")] == [0] * 3


def flights_add_up(
    spark: SparkSession, out: Path, events_of_a_message: int, *arguments: str | Path
) -> str:
    """Run 1,500 flights, and look at the counts; returns what was printed."""
    status, printed = run("flights", "--limit", "1500", "--out", out, *arguments)
    assert status == 0, printed
    result = json.loads(printed.splitlines()[-1])
    assert result["published"] == result["confirmed"] == result["handled"] > 50
    assert (result["lost"], result["duplicates_unexplained"], result["adds_up"]) == (0, 0, True)
    assert sum(result["flights"].values()) == 1500
    events = read_events(spark, out / "events")
    assert events.count() == result["events"] == events_of_a_message * result["published"]
    return printed


GOOD = FrameReport(published=2, confirmed=2)
SUMMARY = {
    "published": 2,
    "confirmed": 2,
    "handled": 2,
    "lost": 0,
    "duplicates_unexplained": 0,
    "never_enqueued": 0,
    "events_missing": 0,
}
LATE = {"late-1": {"origin": "EWR"}, "late-2": {"origin": "LGA"}}


def wrong(
    report: FrameReport = GOOD,
    summary: dict[str, int] | None = None,
    airports: dict[str, int] | None = None,
    change: Callable[[flights.Handled], None] = lambda handled: None,
) -> list[str]:
    handled = flights.Handled({name: dict(LATE) for name in flights.SUBSCRIPTIONS})
    change(handled)
    known = {"EWR": 3}
    counts = {**SUMMARY, **(summary or {})}
    return flights.problems(report, handled, LATE, counts, airports or known, known)


def test_flights_that_add_up_have_no_problems() -> None:
    assert wrong() == []


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"report": replace(GOOD, confirmed=1)}, "1 messages were confirmed, not 2."),
        ({"summary": {"handled": 1}}, "1 messages were handled, says the log, not 2."),
        ({"summary": {"lost": 1}}, "1 messages were lost, not 0."),
        ({"summary": {"events_missing": 4}}, "4 events are missing in the log, not 0."),
        ({"airports": {"EWR": 2}}, "2 flights left EWR, not 3."),
        (
            {"change": lambda handled: handled.seen["late"].pop("late-1")},
            "1 messages were handled by late, not 2.",
        ),
        (
            {"change": lambda handled: handled.seen["late"].update({"late-1": {}})},
            "1 messages reached late changed, not 0.",
        ),
    ],
)
def test_flights_that_do_not_add_up_say_where(how: dict[str, Any], wanted: str) -> None:
    assert wrong(**how) == [wanted]


# --------------------------------------------------------------------------- pictures

MINUTE = datetime(2026, 1, 1)  # noqa: DTZ001 - as Spark gives them
LATENCY = [
    {"queue": "a", "phase": "wait", "window": MINUTE + timedelta(minutes=n), "n": 5}
    | {"p50_ms": 1.0 + n, "p95_ms": 2.0 + n, "p99_ms": 3.0 + n, "max_ms": 4.0 + n}
    for n in range(3)
]
NO_COUNTS = dict.fromkeys(
    ("published", "confirmed", "delivered", "handled", "dead_lettered", "replayed", "dropped",
     "returned", "publish_failed", "lost", "dead_letters_waiting", "duplicates_unexplained",
     "duplicates_explained", "never_enqueued", "events_missing"), 0)  # fmt: skip
PICTURES: list[tuple[str, dict[str, Any], str]] = [
    ("latency", {"latency": LATENCY}, "a: waiting"),
    ("latency", {"latency": LATENCY[:1]}, "1 ms"),
    ("latency", {"latency": []}, "nothing to show"),
    ("throughput", {"throughput": [], "backlog": []}, "nothing to show"),
    ("reliability", {"reliability": [], "causes": []}, "nothing to show"),
    ("poison", {"poison": [], "poison_groups": []}, "no message was tried"),
    ("audit", {"audit_summary": [NO_COUNTS]}, "published"),
]


@pytest.mark.parametrize(("job", "rows", "text"), PICTURES)
def test_every_picture_is_drawn_also_of_nothing(
    tmp_path: Path, job: str, rows: dict[str, Any], text: str
) -> None:
    file = tmp_path / "picture.svg"
    drawing.save(plots.picture(job, rows), file)
    assert text in file.read_text()
