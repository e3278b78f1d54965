"""Properties that pass through a server with the bytes they came as."""

from __future__ import annotations

import pickle

from broker_client.amqp.properties import encoded_properties, plain_properties
from broker_client.amqp.received_properties import received_properties
from broker_client.amqp.tables import FrozenTable
from broker_client.message import Properties

_SENT = Properties(content_type="text/plain", headers={"a": [1, 2]}, delivery_mode=2)
_ENCODED = encoded_properties(_SENT)


def test_received_when_small_and_equal_then_one_object() -> None:
    assert received_properties(bytes(_ENCODED)) is received_properties(bytes(bytearray(_ENCODED)))


def test_received_when_large_then_not_kept() -> None:
    encoded = encoded_properties(Properties(headers={"a": "x" * 1_000}))
    assert received_properties(encoded) is not received_properties(encoded)
    assert received_properties(encoded) == received_properties(encoded)


def test_received_when_a_value_is_replaced_then_encoded_anew() -> None:
    found = received_properties(_ENCODED)
    changed = found._replace(content_type="text/html")
    assert received_properties(encoded_properties(changed)).content_type == "text/html"
    assert encoded_properties(found) == _ENCODED


def test_received_when_pickled_then_the_same() -> None:
    found = pickle.loads(pickle.dumps(received_properties(_ENCODED)))
    assert (found, encoded_properties(found)) == (_SENT, _ENCODED)


def test_plain_then_headers_are_a_dict_and_nothing_is_lost() -> None:
    found = received_properties(_ENCODED)
    assert isinstance(found.headers, FrozenTable)
    plain = plain_properties(found)
    assert (type(plain), type(plain.headers), plain) == (Properties, dict, _SENT)
    assert plain_properties(_SENT) is _SENT
    assert plain_properties(received_properties(b"\x00\x00")) == Properties()
