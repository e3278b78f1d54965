"""The delay before a worker that died is started again."""

from __future__ import annotations

from broker_client.cli.supervisor import pause_after


def test_pause_doubles_with_each_death_in_a_row_up_to_half_a_minute() -> None:
    assert [pause_after(deaths) for deaths in (1, 2, 3, 6, 7, 8, 10_000)] == [
        0.5,
        1.0,
        2.0,
        16.0,
        30.0,
        30.0,
        30.0,
    ]
