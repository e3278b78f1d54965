import pytest

from broker_client.config import BackoffConfig
from broker_client.connection.retry import Backoff, growing, is_retryable
from broker_client.errors import BrokerClosedError, ConnectFailedError, UnsupportedError

CONFIG = BackoffConfig(min=1.0, max=10.0, factor=2.0)


def test_waits_grow_by_the_factor_and_a_little_chance_up_to_max() -> None:
    backoff = Backoff(CONFIG)
    for least, most in ((1, 2), (2, 3), (4, 5), (8, 9), (10, 10), (10, 10)):
        assert least <= backoff.next() <= most


def test_reset_begins_again_from_min() -> None:
    backoff = Backoff(CONFIG)
    for _ in range(5):
        backoff.next()
    assert backoff.failures == 5
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next() <= 2.0


def test_linear_waits_lie_between_min_and_max() -> None:
    backoff = Backoff(BackoffConfig(min=1.0, max=10.0, strategy="linear"))
    waits = [backoff.next() for _ in range(200)]
    assert all(1.0 <= wait <= 10.0 for wait in waits)
    assert max(waits) - min(waits) > 4.0


def test_waits_stay_finite_after_ever_so_many_failures() -> None:
    backoff = Backoff(BackoffConfig(min=0.01, max=60.0, factor=10.0))
    assert [backoff.next() for _ in range(2_000)][-1] == 60.0


@pytest.mark.parametrize(
    ("failures", "wait"), [(0, 1.0), (1, 2.0), (3, 8.0), (4, 10.0), (5_000, 10.0)]
)
def test_growing_is_min_times_factor_to_the_failures_up_to_max(failures: int, wait: float) -> None:
    assert growing(CONFIG, failures) == wait


@pytest.mark.parametrize(
    ("error", "worth_it"),
    [
        (ConnectFailedError("amqp://h", "refused"), True),
        (BrokerClosedError(), False),
        (UnsupportedError("touch", "no"), False),
        (KeyError("a bug"), False),
        (OSError("a foreign one"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_only_our_own_errors_that_say_so_are_tried_again(
    error: BaseException, worth_it: bool
) -> None:
    assert is_retryable(error) is worth_it
