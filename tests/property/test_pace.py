"""JSON decoded in steps equals the standard library's result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.runtime.pace import from_json

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@settings(max_examples=60)
@given(_VALUES, st.sampled_from([None, 1]))
def test_json_in_steps_is_what_it_is_at_once(value: Any, indent: int | None) -> None:
    assert asyncio.run(from_json(f" {json.dumps(value, indent=indent)}\n")) == value


@settings(max_examples=100)
@given(_VALUES, st.data())
def test_json_in_steps_is_wrong_where_it_is_wrong_at_once(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.sampled_from(["", ",", "]", "}", ":", '"', "1"]))
    text = text[:at] + piece + text[at + 1 :]
    assert _outcome(lambda: asyncio.run(from_json(text))) == _outcome(lambda: json.loads(text))


def _outcome(decode: Callable[[], Any]) -> Any:
    """The decoded value, or the error."""
    try:
        return decode()
    except ValueError:
        return ValueError
