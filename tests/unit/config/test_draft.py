"""YAML that is written is read back unchanged."""

from __future__ import annotations

import string

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.config.rascal.draft import Draft, written

AWKWARD = [
    *("", " ", "a b", "null", "~", "Yes", "no", "on", "y", ".inf", ".nan", "=", "<<", "-", "--- a"),
    *("1", "1.5", "1_000", "0x1f", "1e3", "12:30:45", "2026-01-02", ".5", "._", "+.5", "0o7"),
    *("a: b", "a #b", "#a", "[a]", "{a}", "'a'", '"a"', "a\nb", "\t", "&a", "*a", "!a", "%a", "@a"),
    *("é", "\x00", "\x85", "\u2028", "\ufeff", "\x7f", "\U0001f600", "a\\b", "10s", "250ms"),
]


@pytest.mark.parametrize("text", AWKWARD, ids=repr)
def test_text_comes_back_as_text_as_key_and_value(text: str) -> None:
    draft = Draft({"value": text, "list": [text], text: {text: 1}})
    assert yaml.safe_load(written(draft)) == {**draft}


# YAML cannot hold lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$"), max_size=12)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=5))
def test_whatever_json_holds_comes_back(value: dict[str, object]) -> None:
    assert yaml.safe_load(written(Draft(value))) == value


def test_dollars_are_doubled_in_values_and_not_in_keys() -> None:
    assert written(Draft({"a$b": "${A}$"})) == '"a$b": "$${A}$$"\n'


def test_long_values_are_broken_and_short_ones_stay_on_their_line() -> None:
    names = [letter * 20 for letter in string.ascii_lowercase[:6]]
    text = written(Draft({"short": {"a": 1, "b": None}, "long": names}))
    assert text.startswith("short: {a: 1, b: }\nlong:\n  - aaaa")
    assert yaml.safe_load(text)["long"] == names


def test_remarks_stand_above_the_keys_they_are_about() -> None:
    inner, entry, empty = Draft({"a": 1}), Draft({"b": 2}), Draft()
    for draft in (inner, entry, empty):
        draft.note("left  out:\nsomething")
    text = written(Draft({"first": inner, "second": [entry], "third": empty}))
    assert text == (
        "first:\n  # left out: something\n  a: 1\n"
        "second:\n  # left out: something\n  - b: 2\n"
        "# left out: something\nthird: {}\n"
    )
