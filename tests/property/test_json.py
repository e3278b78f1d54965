"""The fast JSON encoder and decoder agree with the standard library."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.codec.content import JSON, decode, encode
from broker_client.errors import InvalidContentError

KEYS = st.text() | st.integers() | st.none() | st.booleans() | st.floats()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner),
)
PIECES = st.sampled_from(
    ["", '"', "\\", "{", "]", ",", "e", "-", "\0", "NaN", "\ufeff", "é", "1" * 30]
)


@settings(max_examples=50)
@given(VALUES.filter(lambda value: not isinstance(value, str)))
def test_encoded_json_says_what_the_standard_library_says(value: Any) -> None:
    try:
        expected = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:  # which a lone surrogate is, too
        try:
            body: bytes | None = encode(value)[0]
        except InvalidContentError:
            body = None
        assert body is None
    else:
        assert repr(json.loads(encode(value)[0])) == repr(json.loads(expected))


@settings(max_examples=50)
@given(VALUES, PIECES, st.integers(0, 40))
def test_decoded_json_is_what_the_standard_library_reads(value: Any, piece: str, at: int) -> None:
    text = json.dumps(value)
    body = (text[:at] + piece + text[at:]).encode()
    try:
        expected = repr(json.loads(body))
    except ValueError:
        expected = "invalid"
    try:
        found = repr(decode(body, JSON))
    except InvalidContentError:
        found = "invalid"
    assert found == expected
