"""Builders for events as a node writes them, and for logs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from broker_client.spark.event_log import read_events, whole

T0 = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""Second 0 of the golden data."""

Line = dict[str, Any]


def micros(second: float) -> int:
    """`second` after T0, as the log writes it."""
    return round((T0 + second) * 1_000_000)


class Lines:
    """Makes numbered events."""

    def __init__(self, node: str = "n1") -> None:
        self.node = node
        self.lines: list[Line] = []

    def add(self, event: str, second: float, message_id: str | None = "m1", **more: Any) -> Line:
        """One event at `second`; `*_at` fields are seconds too, and absent fields are left out."""
        seq = len(self.lines) + 1
        line: Line = {
            "v": 1,
            "event_id": f"{self.node}-b1-{seq}",
            "seq": seq,
            "ts": micros(second),
            "node": self.node,
            "vhost": "/",
            "event": event,
            "message_id": message_id,
        }
        for key, value in more.items():
            line[key] = micros(value) if key.endswith("_at") else value
        self.lines.append(line)
        return line

    def stay(
        self, message_id: str, queue: str, second: float, *, wait: float, handle: float
    ) -> None:
        """Published, confirmed, enqueued, delivered after `wait` and acked after `handle` more."""
        self.add("published", second, message_id, exchange="x", published_at=second, size=10)
        self.add("confirmed", second, message_id, exchange="x", published_at=second, size=10)
        at: dict[str, Any] = {"queue": queue, "published_at": second, "enqueued_at": second}
        self.add("enqueued", second, message_id, size=10, **at)
        out = second + wait
        at |= {"delivered_at": out, "attempt": 1, "redelivered": False, "consumer": "c1"}
        self.add("delivered", out, message_id, size=10, **at)
        self.add("acked", out + handle, message_id, size=10, **at)


def write_log(folder: Path, lines: Iterable[Line], *, name: str = "1-1") -> Path:
    """One closed file of a log under `folder`."""
    there = folder / "dt=2026-01-01" / "node=n1"
    there.mkdir(parents=True, exist_ok=True)
    (there / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def split_log(folder: Path, lines: Sequence[Line], rng: random.Random, *, files: int) -> Path:
    """The lines, shuffled, in several files."""
    shuffled = rng.sample(lines, len(lines))
    cuts = sorted(rng.randrange(len(lines) + 1) for _ in range(files - 1))
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        write_log(folder, shuffled[start:end], name=f"1-{number}")
    return folder


def frame(spark: SparkSession, folder: Path, lines: Iterable[Line]) -> DataFrame:
    """The events of `lines`, written to a log and read back."""
    return whole(read_events(spark, write_log(folder, lines)))


def rows(table: DataFrame) -> list[dict[str, Any]]:
    """The rows of a result."""
    return [row.asDict() for row in table.collect()]
