"""Steps of delayed publishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client.errors import InvalidMessageError
from broker_client.message import Outgoing, Properties
from broker_client.publishing.delay import MAX_DELAY, check_delay, delayed_by_header, step_for


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [(0.0, 1), (0.0004, 1), (0.05, 50), (0.2, 200), (1.234, 1300), (60.0, 60_000), (61.1, 62_000)],
)
def test_delay_is_rounded_up_to_two_digits(delay: float, milliseconds: int) -> None:
    assert step_for("orders", delay).milliseconds == milliseconds


@given(st.floats(min_value=0.001, max_value=MAX_DELAY - 1))
def test_step_is_never_shorter_and_at_most_a_tenth_longer(delay: float) -> None:
    step = step_for("orders", delay).milliseconds
    assert delay * 1000 <= step <= delay * 1000 * 1.1 + 1


def test_every_delay_up_to_a_day_shares_a_few_hundred_queues() -> None:
    steps = {step_for("orders", n / 10).milliseconds for n in range(1, 864_000)}
    assert len(steps) <= 90 * 6


def test_each_exchange_has_its_own_step() -> None:
    assert step_for("a", 1.0).name != step_for("b", 1.0).name
    assert step_for("", 1.0).name == "broker_client.delay.1000.default"


@pytest.mark.parametrize("delay", [-0.1, MAX_DELAY, 2**32, float("nan"), float("inf")])
def test_delay_out_of_range_is_refused_and_never_none(delay: float) -> None:
    with pytest.raises(InvalidMessageError, match="delay is"):
        check_delay(delay)


def test_header_is_whole_milliseconds_beside_the_others() -> None:
    outgoing = Outgoing("x", "k", b"", Properties(headers={"a": 1}))
    delayed = delayed_by_header(outgoing, 0.2501)
    assert delayed.properties.headers == {"a": 1, "x-delay": 251}
    assert outgoing.properties.headers == {"a": 1}
