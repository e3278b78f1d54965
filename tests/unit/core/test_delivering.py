"""Properties as a consumer sees them, of messages from this process and from a port."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.amqp.properties import ReceivedProperties
from broker_client.amqp.tables import FrozenTable, preceded
from broker_client.core.arguments import QueueSettings
from broker_client.core.dead_lettering import OUR_DEATHS, WRITTEN_HERE
from broker_client.core.delivering import shown_properties
from broker_client.core.queue import Entry, Queue
from broker_client.message import Outgoing, Properties


def an_entry(properties: Properties, *, counts: bool, attempts: int) -> Entry:
    queue = Queue(
        "q",
        "/",
        durable=False,
        owner=None,
        auto_delete=False,
        arguments={},
        settings=QueueSettings(quorum=counts),
        last_used=0.0,
    )
    entry = Entry(queue, Outgoing("", "q", b"", properties), 1)
    entry.attempts = attempts
    return entry


def received(headers: dict[str, Any]) -> Properties:
    return ReceivedProperties(headers=FrozenTable.of(headers))


def plain(headers: dict[str, Any]) -> Properties:
    return Properties(headers=headers)


@pytest.mark.parametrize("made", [received, plain])
@pytest.mark.parametrize(
    ("headers", "counts", "attempts", "shown"),
    [
        ({"a": 1, "BCC": ["k"]}, False, 1, {"a": 1}),
        ({"a": 1, OUR_DEATHS: 1}, False, 1, {"a": 1}),
        ({"a": 1, "x-delivery-count": 9}, False, 2, {"a": 1, "x-delivery-count": 9}),
        ({"a": 1, "x-delivery-count": 9}, True, 1, {"a": 1}),
        ({"a": 1, "x-delivery-count": 9}, True, 3, {"a": 1, "x-delivery-count": 2}),
        ({"a": 1, "BCC": ["k"]}, True, 2, {"a": 1, "x-delivery-count": 1}),
        ({"a": 1}, True, 2, {"a": 1, "x-delivery-count": 1}),
        ({"a": 1}, False, 2, {"a": 1}),
    ],
)
def test_hidden_headers_are_taken_off_and_returns_counted_where_the_queue_does(
    made: Any, headers: dict[str, Any], counts: bool, attempts: int, shown: dict[str, Any]
) -> None:
    properties = made(headers)
    found = shown_properties(an_entry(properties, counts=counts, attempts=attempts), properties)
    assert dict(found.headers or {}) == shown


@pytest.mark.parametrize("made", [received, plain])
@pytest.mark.parametrize("counts", [False, True])
def test_headers_with_nothing_to_hide_are_those_that_were_published(
    made: Any, counts: bool
) -> None:
    properties = made({"a": 1})
    entry = an_entry(properties, counts=counts, attempts=1)
    assert shown_properties(entry, properties) is properties


def test_mark_of_a_dead_letter_is_taken_off_and_the_rest_keeps_its_bytes() -> None:
    headers = FrozenTable.of({"a": 1})
    properties = ReceivedProperties(headers=preceded(headers, WRITTEN_HERE))
    entry = an_entry(properties, counts=False, attempts=1)
    found = shown_properties(entry, properties).headers
    assert type(found) is FrozenTable
    assert dict(found) == {"a": 1}


def test_count_is_shown_where_there_are_no_other_headers() -> None:
    properties = Properties()
    entry = an_entry(properties, counts=True, attempts=2)
    assert shown_properties(entry, properties).headers == {"x-delivery-count": 1}
