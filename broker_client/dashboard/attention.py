"""The most urgent problems, from recent samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from broker_client.dashboard.rows import Row
from broker_client.runtime.pace import paced
from broker_client.runtime.slotted import slotted

_GROWTH_OVER = 300.0  # seconds
_STUCK_AFTER = 60.0
_OLD = 3600.0
_RANK = {"alarm": 0, "warning": 1, "notice": 2}
_MOST = 100

Key = tuple[str, str]
Finding = dict[str, Any]


@slotted(frozen=False)
class Past:
    """Earlier states of queues that matter for problems."""

    stuck_since: dict[Key, float] = field(default_factory=dict)
    """Queues whose consumers hold messages, none of which was acknowledged since."""
    found_since: dict[tuple[str, ...], float] = field(default_factory=dict)
    """What was found already, and when first."""


async def find(
    rows: Sequence[Row],
    alarms: Sequence[str],
    blocked: Sequence[Mapping[str, Any]],
    growth: Mapping[Key, float],
    past: Past,
    now: float,
) -> list[Finding]:
    """Problems, most urgent first.

    Args:
        rows: of all queues.
        alarms: that are raised.
        blocked: connections whose publishers may not publish.
        growth: of queues of dead letters: messages more than five minutes ago.
        past: of the last time; is brought up to date.
        now: seconds since the epoch.
    """
    found: list[Finding] = []
    for alarm in alarms:
        text = f"The {alarm} alarm is raised: publishers are blocked until it clears."
        found.append({"level": "alarm", "kind": "alarm", "text": text, "alarm": alarm})
    for each in blocked:
        name = str(each.get("name", ""))
        text = f"Connection {name} of user {each.get('user', '')} is blocked and cannot publish."
        found.append(
            {"level": "warning", "kind": "blocked_publishers", "connection": name, "text": text}
        )
    stuck: dict[Key, float] = {}
    async for row in paced(rows):
        found.extend(_of_queue(row, growth, past, stuck, now))
    past.stuck_since = stuck
    since: dict[tuple[str, ...], float] = {}
    for finding in found:
        named = ("kind", "alarm", "connection", "vhost", "queue")
        key = tuple(str(finding.get(part, "")) for part in named)
        finding["since"] = since[key] = past.found_since.get(key, now)
    past.found_since = since
    found.sort(key=lambda each: (_RANK[each["level"]], -each.get("value", 0)))
    return found[:_MOST]


def _of_queue(
    row: Row,
    growth: Mapping[Key, float],
    past: Past,
    stuck: dict[Key, float],
    now: float,
) -> Iterable[Finding]:
    key = (row["vhost"], row["name"])
    ready, unacked = row.get("ready", 0), row.get("unacked", 0)
    consumers = row.get("consumers", 0)
    if row.get("dead_letter_queue"):
        more = growth.get(key, 0)
        if more > 0:
            text = (
                f"{more:,.0f} more dead letters within five minutes: {ready:,} are in this queue."
            )
            yield _finding("warning", "dead_letters", row, more, text)
        elif ready:
            text = f"{ready:,} dead letters are in this queue."
            yield _finding("notice", "dead_letters", row, ready, text)
    elif ready and not consumers:
        text = f"{ready:,} messages are ready, but there is no consumer."
        yield _finding("warning", "no_consumers", row, ready, text)
    if unacked and consumers and not row.get("ack"):
        stuck[key] = past.stuck_since.get(key, now)
        seconds = now - stuck[key]
        if seconds >= _STUCK_AFTER:
            text = (
                f"Consumers hold {unacked:,} messages, and have acknowledged none for "
                f"{seconds:,.0f} s."
            )
            yield _finding("warning", "stuck_consumers", row, unacked, text)
    if row.get("paused") and ready:
        text = f"The queue is paused, and {ready:,} messages are ready."
        yield _finding("notice", "paused", row, ready, text)
    if row.get("age", 0) > _OLD and not row.get("dead_letter_queue"):
        text = f"The oldest message has been ready for {row['age'] / 3600:,.1f} hours."
        yield _finding("notice", "old_message", row, row["age"], text)


def _finding(level: str, kind: str, row: Row, value: float, text: str) -> Finding:
    return {
        "level": level,
        "kind": kind,
        "vhost": row["vhost"],
        "queue": row["name"],
        "value": value,
        "text": text,
    }
