"""A rate allows its number of messages in any span of its length."""

from __future__ import annotations

import pytest

from broker_client.config.values import rate_of
from broker_client.consuming.rate_limit import RateLimit


def test_no_span_of_the_length_has_more_than_the_count() -> None:
    limit, now = RateLimit(3, 1.0), 100.0
    taken: list[float] = []
    while len(taken) < 20:
        wait = limit.take(now)
        if not wait:
            taken.append(now)
        now += wait or 0.1
    for first, fourth in zip(taken, taken[3:], strict=False):
        assert fourth - first >= 1.0 - 1e-9
    assert taken[-1] - taken[0] < 6.3  # and it allows as many as it may


def test_what_was_not_used_is_not_saved_up() -> None:
    limit = RateLimit(2, 1.0)
    assert [limit.take(1000.0) for _ in range(3)] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5/s", (5, 1.0)), ("100/m", (100, 60.0)), (" 10 / 30s", (10, 30.0)), ("1/500ms", (1, 0.5))],
)
def test_rate_is_read(text: str, rate: tuple[int, float]) -> None:
    assert rate_of(text) == rate


@pytest.mark.parametrize("text", ["5", "0/s", "5/", "5/0s", "/s", "5/x", 5, None])
def test_what_is_no_rate_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="5/s"):
        rate_of(text)
