"""Edits a message and sends it again: the copy is confirmed before the original is removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.amqp.json_values import body_of, timestamp_of
from broker_client.amqp.tables import replaced
from broker_client.amqp.x_death import Death, without_deaths
from broker_client.core.access import DEFAULT_EXCHANGE
from broker_client.dashboard.messages import key_of
from broker_client.dashboard.refusals import bad_request
from broker_client.dashboard.requests import number, text
from broker_client.message import Delivery, Outgoing, Properties
from broker_client.moving.copies import Fate, copied_properties
from broker_client.moving.move import MoveOptions, MoveProgress, move_each
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Link

_NUMBERS = ("delivery_mode", "priority")


@slotted
class Edit:
    """What is different in the copy. All else is of the original, in the types of AMQP that it
    has: JSON, which the page reads and writes, has fewer."""

    exchange: str
    routing_key: str
    body: bytes | None
    """None is the original's."""
    properties: Mapping[str, Any]
    """Those that are changed, by the fields of `Properties`; None takes one away."""
    kept_headers: frozenset[str]
    """Names of headers that stay as they are. Others go."""
    headers: Mapping[str, Any]
    """Headers that are changed or new."""

    def copy_of(self, original: Delivery) -> Outgoing:
        """The copy that is sent. What tells of the deaths of the original goes, as in a replay."""
        headers = without_deaths(original.properties.headers or {})
        kept = replaced(headers, headers.keys() - self.kept_headers)
        properties = original.properties._replace(**self.properties)
        properties = copied_properties(properties, kept, self.headers)
        body = original.body if self.body is None else self.body
        return Outgoing(self.exchange, self.routing_key, body, properties, mandatory=True)


async def replace_message(link: Link, queue: str, key: str, edit: Edit) -> MoveProgress:
    """Publish the copy and, once it is confirmed, remove the message of that key from `queue`.

    A crash in between leaves both, with one message id. The next try of the same edit finds a copy
    that is ready in the queue it was sent straight to, and only takes the original out.

    Raises:
        BrokerClientError: the broker refuses, or the link is lost.
    """
    found = False

    def decide(delivery: Delivery, death: Death) -> Outgoing | Fate:
        nonlocal found
        if found or delivery.fault or key_of(delivery) != key:
            return Fate.KEEP
        found = True
        return edit.copy_of(delivery)

    return await move_each(link, queue, decide, MoveOptions(limit=1))


def edit_of(data: Mapping[str, Any]) -> Edit:
    """What a page asks for.

    Raises:
        Refusal: 400, it is not an edit.
    """
    given = dict(data)
    exchange = text(given, "exchange", "")
    kept = given.get("kept_headers", [])
    if not (isinstance(kept, list) and all(isinstance(each, str) for each in kept)):
        raise bad_request("kept_headers must be a list of names")
    return Edit(
        "" if exchange == DEFAULT_EXCHANGE else exchange,
        text(given, "routing_key"),
        _body(given),
        _properties(_object(given, "properties")),
        frozenset(kept),
        _object(given, "headers"),
    )


def _body(given: dict[str, Any]) -> bytes | None:
    if given.get("payload") is None:
        return None
    payload, encoding = text(given, "payload"), text(given, "payload_encoding", "string")
    try:
        return body_of(payload, encoding)
    except ValueError as error:
        raise bad_request(str(error)) from None


def _object(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key) or {}
    if not isinstance(value, Mapping):
        raise bad_request(f"{key} must be an object")
    return value


def _properties(given: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key not in Properties._fields or key == "headers":
            raise bad_request(f"unknown property: {key}")
        if key == "user_id":
            continue  # the broker lets one publish in one's own name only
        if value is None:
            fields[key] = None
        elif key == "timestamp":
            try:
                fields[key] = timestamp_of(value)
            except ValueError as error:
                raise bad_request(str(error)) from None
        elif key in _NUMBERS:
            fields[key] = number(dict(given), key, None, 0, 255)
        elif isinstance(value, str):
            fields[key] = value
        else:
            raise bad_request(f"{key} must be a text")
    return fields
