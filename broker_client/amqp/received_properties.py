"""Messages that pass through: properties with the bytes they were received as."""

from __future__ import annotations

from functools import lru_cache

from broker_client.amqp.properties import content_header, property_list
from broker_client.amqp.tables import FrozenTable, malformed
from broker_client.message import Properties

_LARGEST_KEPT = 512  # bytes
_SIZE = bytes(12)  # class, weight and body size of a content header


class ReceivedProperties(Properties):
    """Properties that keep the bytes a peer sent, so that they are delivered as they came.

    `_replace` gives properties without `encoded`.
    """

    encoded: bytes = b""
    """Property flags and values; empty when a value was replaced."""


def received_properties(encoded: bytes) -> ReceivedProperties:
    """The properties in a content header.

    Args:
        encoded: flags and values.

    Raises:
        MalformedFrameError: they are not what they should be.
    """
    return _known(encoded) if len(encoded) <= _LARGEST_KEPT else _decoded(encoded)


def _decoded(encoded: bytes) -> ReceivedProperties:
    with malformed():
        _, values = content_header(_SIZE + encoded)
    if values.headers is not None:
        values = values._replace(headers=FrozenTable.of(values.headers))
    properties = ReceivedProperties(*values)
    properties.encoded = encoded
    return properties


_known = lru_cache(maxsize=1024)(_decoded)


def encoded_properties(properties: Properties) -> bytes:
    """Flags and values of a content header, as received if they are unchanged.

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    if type(properties) is ReceivedProperties and properties.encoded:
        return properties.encoded
    flags, data = property_list(properties)
    return flags.to_bytes(2, "big") + data
