"""Findings that need attention, and their order."""

from __future__ import annotations

from typing import Any

from broker_client.dashboard.attention import Past, find

NOW = 1_000_000.0


def a_row(name: str = "q", **more: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": name, **more}


async def found(*rows: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    """Level and kind of each."""
    growth = more.get("growth", {})
    told = await find(
        list(rows), more.get("alarms", ()), more.get("blocked", ()), growth, Past(), NOW
    )
    return [(each["level"], each["kind"]) for each in told]


async def test_what_is_well_needs_no_attention() -> None:
    assert await found(a_row(), a_row(ready=5, unacked=1, consumers=1, ack=2.0)) == []


async def test_gravest_comes_first() -> None:
    rows = [
        a_row("paused", ready=9, paused=True, consumers=1),
        a_row("left", ready=5),
        a_row("more", ready=50),
    ]
    blocked = [{"name": "c1", "user": "u", "state": "blocked"}]
    told = await find(rows, ["memory"], blocked, {}, Past(), NOW)
    assert [(each["kind"], each.get("queue")) for each in told] == [
        ("alarm", None),
        ("no_consumers", "more"),
        ("no_consumers", "left"),
        ("blocked_publishers", None),
        ("paused", "paused"),
    ]


async def test_dead_letters_that_grow_are_a_warning_and_those_that_lie_a_notice() -> None:
    row = a_row("dead", ready=7, dead_letter_queue=True)
    assert await found(row, growth={("/", "dead"): 3.0}) == [("warning", "dead_letters")]
    assert await found(row) == [("notice", "dead_letters")]
    assert await found(a_row("dead", dead_letter_queue=True)) == []


async def test_consumers_that_hold_and_do_not_ack_are_told_after_a_while() -> None:
    past, row = Past(), a_row(unacked=3, consumers=1)
    assert await find([row], (), (), {}, past, NOW) == []
    assert await find([row], (), (), {}, past, NOW + 59) == []
    (told,) = await find([row], (), (), {}, past, NOW + 61)
    assert (told["kind"], told["value"], told["since"]) == ("stuck_consumers", 3, NOW + 61)
    assert await find([{**row, "ack": 0.1}], (), (), {}, past, NOW + 66) == []
    assert await find([row], (), (), {}, past, NOW + 71) == []  # it counts anew


async def test_finding_keeps_the_time_when_it_began() -> None:
    past, row = Past(), a_row(ready=1)
    for seconds in (0, 5, 10):
        (told,) = await find([row], (), (), {}, past, NOW + seconds)
        assert told["since"] == NOW
    await find([a_row()], (), (), {}, past, NOW + 15)
    (told,) = await find([row], (), (), {}, past, NOW + 20)
    assert told["since"] == NOW + 20


async def test_old_message_is_reported_but_not_of_dead_letters() -> None:
    assert await found(a_row(ready=1, consumers=1, age=7200)) == [("notice", "old_message")]
    assert ("notice", "old_message") not in await found(
        a_row(ready=1, age=7200, dead_letter_queue=True)
    )


async def test_findings_are_bounded() -> None:
    assert len(await found(*(a_row(str(each), ready=1) for each in range(1000)))) == 100
