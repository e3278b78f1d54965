import time

import pytest

from broker_client.runtime.clock import SystemClock
from tests.support.clock import ManualClock


def test_system_clock_starts_at_wall_time() -> None:
    before = time.time()
    now = SystemClock().now()
    assert before - 0.1 <= now <= time.time() + 0.1


def test_system_clock_ignores_a_jump_of_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.now() < before + 5


def test_system_clock_moves_with_steady_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    monkeypatch.setattr("broker_client.runtime.clock.time.clock_gettime", lambda clock: 50.0)
    clock = SystemClock()
    monkeypatch.setattr("broker_client.runtime.clock.time.clock_gettime", lambda clock: 52.5)
    assert clock.now() == 1_002.5


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has that clock")
def test_steady_time_goes_on_while_the_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The monotonic clock stands still meanwhile."""
    clock = SystemClock()
    before = clock.now()
    boot_time = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: boot_time + 3_600.0)
    assert clock.now() - before >= 3_599.0


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(100.0)
    assert clock.now() == clock.now() == 100.0
    assert clock.advance(2.5) == 102.5
    assert clock.now() == 102.5


def test_manual_clock_refuses_to_go_back() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(-1)
    assert clock.now() == ManualClock().now()
