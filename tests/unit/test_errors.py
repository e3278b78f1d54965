import pytest

from broker_client import errors
from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    ConfigError,
    MessageReturnedError,
    PoolTimeoutError,
    Problem,
    PublishTimeoutError,
    PublishUnconfirmedError,
    UnknownNameError,
    nearest,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ordres", "orders"), ("orders", "orders"), ("zebra", None), ("", None)],
)
def test_nearest_finds_what_was_meant(name: str, expected: str | None) -> None:
    assert nearest(name, ["orders", "invoices"]) == expected


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("a.b", "is odd", "app.yaml", 3), "app.yaml:3: a.b: is odd"),
        (Problem("a.b", "is odd", "app.yaml"), "app.yaml: a.b: is odd"),
        (Problem("a.b", "is odd"), "configuration: a.b: is odd"),
        (Problem("", "is empty", "app.yaml", 1), "app.yaml:1: is empty"),
    ],
)
def test_problem_says_where_and_what(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_config_error_lists_every_problem_one_a_line() -> None:
    error = ConfigError([Problem("a", "is odd"), Problem("b", "is even")])
    assert str(error).splitlines() == ["configuration: a: is odd", "configuration: b: is even"]
    assert isinstance(error, ValueError)


def test_unknown_name_offers_the_nearest_and_lists_what_there_is() -> None:
    error = UnknownNameError("publication", "ordres", ["orders", "invoices"])
    assert str(error) == (
        "unknown publication 'ordres'; did you mean 'orders'? (declared: invoices, orders)"
    )
    assert str(UnknownNameError("vhost", "x", [])) == "unknown vhost 'x' (declared: none)"


def test_channel_closed_shows_the_reply_code_if_there_is_one() -> None:
    assert str(ChannelClosedError(404, "NOT_FOUND")) == "channel closed: 404 NOT_FOUND"
    assert str(ChannelClosedError(0, "closed by us")) == "channel closed: closed by us"


def test_returned_message_says_why_and_where() -> None:
    error = MessageReturnedError("orders", "m1", 312, "NO_ROUTE", "shop", "order.placed")
    for part in ("'orders'", "m1", "312 NO_ROUTE", "'shop'", "'order.placed'"):
        assert part in str(error)


@pytest.mark.parametrize(
    "error",
    [
        PoolTimeoutError("orders", 1.5),
        PublishTimeoutError("orders", "m1", 1.5, "down"),
        PublishUnconfirmedError("orders", "m1", 1.5, "up"),
    ],
)
def test_time_outs_are_the_builtin_one_too_and_worth_another_try(
    error: BrokerClientError,
) -> None:
    assert isinstance(error, TimeoutError)
    assert error.retryable
    assert "1.5" in str(error)


def test_every_family_is_caught_by_its_head() -> None:
    for name in ("UsageError", "TransportError", "PoolError", "PublishError", "DeliveryError"):
        assert issubclass(getattr(errors, name), BrokerClientError)
