"""Messages for the dead queue: with a note of why they are there."""

from __future__ import annotations

from broker_client.message import Outgoing, Properties, Returned

_NOTE_LENGTH = 1_000  # characters of a header of a dead message


def unroutable_copy(message: Outgoing, returned: Returned) -> Outgoing:
    """`message` for the dead queue, with a note of its exchange and routing key."""
    headers = {
        **(message.properties.headers or {}),
        "x-unroutable-exchange": returned.exchange,
        "x-unroutable-routing-key": returned.routing_key,
        "x-unroutable-reason": returned.reply_text,
    }
    return message._replace(properties=message.properties._replace(headers=headers))


def invalid_copy(message: Outgoing, reason: str) -> Outgoing:
    """The body of `message` for the dead queue, with what is safe to send of the rest."""
    message_id = message.properties.message_id or ""
    headers = {
        "x-invalid-reason": reason[:_NOTE_LENGTH],
        "x-invalid-exchange": message.exchange[:_NOTE_LENGTH],
        "x-invalid-routing-key": message.routing_key[:_NOTE_LENGTH],
        "x-invalid-message-id": message_id[:_NOTE_LENGTH],
    }
    properties = Properties(
        message_id=message_id.encode()[:255].decode(errors="ignore"),
        headers=headers,
        delivery_mode=message.properties.delivery_mode,
    )
    return message._replace(body=message.body or b"", properties=properties)
