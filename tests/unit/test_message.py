from datetime import UTC, datetime

import pytest

from broker_client.message import Delivery, Outgoing, Properties, Returned, counted_attempts

# AMQP 0-9-1 §1.8, basic class, in the order of the flag bits.
WIRE_ORDER = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


def test_properties_stand_in_the_order_of_the_wire() -> None:
    assert Properties._fields == WIRE_ORDER


def test_properties_are_absent_unless_given() -> None:
    assert Properties() == (None,) * len(WIRE_ORDER)


def test_absent_property_differs_from_an_empty_one() -> None:
    assert Properties(headers={}) != Properties()
    assert Properties(message_id="") != Properties()


def test_properties_do_not_change() -> None:
    properties = Properties(message_id="m", timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(AttributeError):
        properties.message_id = "other"  # type: ignore[misc] # that it cannot be set is the point
    assert properties._replace(message_id="other") == Properties(
        message_id="other", timestamp=properties.timestamp
    )


def test_outgoing_is_not_mandatory_unless_said() -> None:
    message = Outgoing("x", "k", b"body", Properties())
    assert message.mandatory is False


def test_delivery_counts_no_attempts_unless_the_broker_does() -> None:
    assert Delivery("c", 1, False, "x", "k", b"body", Properties()).attempts is None


def test_returned_carries_the_message_as_it_was_sent() -> None:
    sent = Outgoing("x", "k", b"body", Properties(message_id="m"), mandatory=True)
    returned = Returned(
        312, "NO_ROUTE", sent.exchange, sent.routing_key, sent.body, sent.properties
    )
    assert returned[2:] == sent[:4]


@pytest.mark.parametrize(
    ("headers", "counted"),
    [
        ({}, None),
        ({"x-delivery-count": 0}, 1),
        ({"x-delivery-count": 2}, 3),
        ({"x-acquired-count": 2}, 3),
        ({"x-acquired-count": 4, "x-delivery-count": 1}, 5),
        ({"x-delivery-count": "many"}, None),
        ({"x-delivery-count": -3}, None),
        ({"x-acquired-count": True, "x-delivery-count": 1}, 2),
    ],
)
def test_attempts_are_counted_by_a_quorum_queue_of_any_version(
    headers: dict[str, object], counted: int | None
) -> None:
    delivery = Delivery("c", 1, True, "x", "k", b"body", Properties(headers=headers))
    assert counted_attempts(delivery) == counted
