"""Values of messages, as JSON has them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker_client.amqp.json_values import body_of, timestamp_of


def test_timestamp_is_seconds() -> None:
    assert timestamp_of(86_400) == datetime(1970, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("seconds", ["1", 1.5, True, None, 10**30, -(10**30)])
def test_timestamp_when_it_is_no_time_then_refused(seconds: object) -> None:
    with pytest.raises(ValueError, match="timestamp must be seconds since 1970"):
        timestamp_of(seconds)


def test_body_is_text_or_base64() -> None:
    assert (body_of("é", "string"), body_of("w6k=", "base64")) == ("é".encode(), "é".encode())


@pytest.mark.parametrize(
    ("payload", "encoding", "why"),
    [
        ("é", "base64", "not base64"),
        ("a", "base64", "not base64"),
        ("a", "hex", "string or base64"),
    ],
)
def test_body_when_it_is_neither_then_refused(payload: str, encoding: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        body_of(payload, encoding)
