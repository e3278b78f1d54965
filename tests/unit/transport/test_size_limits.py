from __future__ import annotations

import pickle
from typing import Any

import pytest

from broker_client.errors import MessageTooLargeError
from broker_client.transport.limits import size_limit_in, usual_size_limit


@pytest.mark.parametrize(
    ("product", "version", "expected"),
    [
        ("RabbitMQ", "3.7.28", 0),
        ("RabbitMQ", "3.8.0", 134_217_728),
        ("RabbitMQ", "3.13.7", 134_217_728),
        ("RabbitMQ", "4.0.0", 16_777_216),
        ("RabbitMQ", "4.3.1+beta.2", 16_777_216),
        ("RabbitMQ", "unknown", 0),
        ("LavinMQ", "2.0.0", 0),
        (None, None, 0),
    ],
)
def test_limit_of_a_server_is_what_its_version_has_by_default(
    product: Any, version: Any, expected: int
) -> None:
    told = {key: value for key, value in (("product", product), ("version", version)) if value}
    limit = usual_size_limit(told)
    assert limit.size_bytes == expected
    assert not expected or f"the default of RabbitMQ {version}" in limit.source


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (406, "PRECONDITION_FAILED - message size 9 is larger than configured max size 8", 8),
        (406, "PRECONDITION_FAILED - message size 9 is larger than max size 8", 8),
        (406, "PRECONDITION_FAILED - unknown delivery tag 8", None),
        (404, "NOT_FOUND - no queue 'message size 9 is larger than max size 8'", None),
    ],
)
def test_limit_is_taken_from_a_refusal_for_size_and_no_other(
    code: int, text: str, expected: int | None
) -> None:
    limit = size_limit_in(code, text)
    assert (limit and limit.size_bytes) == expected


def test_error_travels_with_its_fields() -> None:
    error = pickle.loads(pickle.dumps(MessageTooLargeError("orders", "m1", 9, 8, "the broker")))
    assert (error.reply_code, error.size_bytes, error.limit_bytes) == (406, 9, 8)
    assert str(error) == (
        "publication 'orders': message m1 is larger than the broker accepts: 9 bytes, at most 8 "
        "are allowed: the broker"
    )
