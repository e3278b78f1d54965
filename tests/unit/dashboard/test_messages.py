"""Bodies as text, and keys that identify a message."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker_client.dashboard.messages import key_of, message_of, readable
from broker_client.message import Delivery, Properties


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "empty", ""),
        (b'{"b":1,"a":"\xc3\xa9"}', "json", '{\n  "b": 1,\n  "a": "é"\n}'),
        (b"{not json", "text", "{not json"),
        (b'{"a": "\\ud800"}', "text", '{"a": "\\ud800"}'),
        (b"[" * 100_000, "text", "[" * 100_000),
        (b"plain <b>text</b>", "text", "plain <b>text</b>"),
        (b"12", "text", "12"),
        (b"\xff", "binary", f"00000000  {'ff':<47}  ."),
        (b"a\0b", "binary", f"00000000  {'61 00 62':<47}  a.b"),
    ],
)
def test_body_is_shown_as_what_it_is(body: bytes, kind: str, text: str) -> None:
    shown = readable(body)
    assert (shown["kind"], shown["text"]) == (kind, text)


def test_body_cut_off_within_a_character_is_text_and_no_json() -> None:
    assert readable("{é".encode()[:-1], whole=False) == {
        "kind": "text",
        "text": "{",
        "encoding": "utf-8",
    }


def an_answer(delivery: Delivery) -> dict[str, Any]:
    """The answer of a management API for the same message."""
    properties: dict[str, Any] = {}
    headers = dict(delivery.properties.headers or {})
    for name, value in headers.items():
        if isinstance(value, datetime):
            headers[name] = int(value.timestamp())
    if headers:
        properties["headers"] = headers
    if delivery.properties.message_id:
        properties["message_id"] = delivery.properties.message_id
    return {
        "payload_bytes": len(delivery.body),
        "payload": base64.b64encode(delivery.body[:5000]).decode(),
        "payload_encoding": "base64",
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "redelivered": True,
        "properties": properties or [],  # as RabbitMQ writes an empty one
    }


def a_delivery(body: bytes = b"x", key: str = "k", **properties: Any) -> Delivery:
    return Delivery("", 1, False, "e", key, body, Properties(**properties))


HEADERS = {"a": "text", "n": 5, "yes": True, "when": datetime(2026, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    "delivery",
    [
        a_delivery(),
        a_delivery(b"y" * 100_000),
        a_delivery(message_id="m", headers=HEADERS),
        a_delivery(headers={"x-death": [{"queue": "q", "reason": "expired", "count": 2}]}),
    ],
)
def test_message_has_one_key_however_it_was_read(delivery: Delivery) -> None:
    assert message_of(an_answer(delivery), 0, 10)["key"] == key_of(delivery)


def test_count_of_deliveries_is_not_in_the_key() -> None:
    plain, counted = a_delivery(), a_delivery(headers={"x-delivery-count": 3})
    assert key_of(plain) == key_of(counted)


def test_messages_that_differ_have_other_keys() -> None:
    different = [
        a_delivery(),
        a_delivery(b"y"),
        a_delivery(b"xx"),
        a_delivery(key="l"),
        a_delivery(message_id="m"),
        a_delivery(headers={"a": 1}),
        a_delivery(headers={"a": "1"}),
        a_delivery(headers={"x-death": [{"queue": "q", "reason": "expired", "count": 2}]}),
        a_delivery(headers={"x-death": [{"queue": "q", "reason": "expired", "count": 3}]}),
    ]
    assert len({key_of(each) for each in different}) == len(different)


def test_header_that_apis_write_in_their_own_way_does_not_matter() -> None:
    assert key_of(a_delivery()) == key_of(a_delivery(headers={"d": Decimal("1.5"), "t": {"x": 1}}))
