"""Topic and headers routing compared with slow and simple matchers."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.core.exchange import HeadersMatch
from broker_client.core.topic import TopicTrie, words

WORDS = st.sampled_from(["a", "b", "", "*"])
KEYS = st.lists(WORDS, max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#", ""]), max_size=5).map(".".join)


def matches(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


@settings(max_examples=300, deadline=None)
@given(st.lists(PATTERNS, max_size=8), KEYS)
def test_the_trie_matches_as_the_definition_does(patterns: list[str], key: str) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number, pattern in enumerate(patterns):
        trie.add(pattern, number)
    expected = {n for n, p in enumerate(patterns) if matches(words(p), words(key))}
    assert set(trie.match(key)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(PATTERNS, st.integers(0, 2)), max_size=8), st.data())
def test_what_is_taken_out_matches_no_more_and_leaves_nothing_behind(
    bindings: list[tuple[str, int]], data: st.DataObject
) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for pattern, destination in bindings:
        trie.add(pattern, destination)
    removed = (
        data.draw(st.lists(st.sampled_from(range(len(bindings))), unique=True))
        if (bindings)
        else []
    )
    for number in removed:
        trie.remove(*bindings[number])
    left = [binding for number, binding in enumerate(bindings) if number not in removed]
    key = data.draw(KEYS)
    assert set(trie.match(key)) == {d for p, d in left if matches(words(p), words(key))}
    for binding in left:
        trie.remove(*binding)
    assert not trie._root.children
    assert not trie._root.destinations


HEADER_NAMES = st.sampled_from(["a", "b", "x-c"])
VALUES = st.sampled_from([None, 1, True, "1"])
TABLES = st.dictionaries(HEADER_NAMES, VALUES)
MODES = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


@settings(max_examples=300, deadline=None)
@given(MODES, TABLES, TABLES)
def test_headers_match_as_the_definition_does(
    mode: str, wanted: dict[str, Any], headers: dict[str, Any]
) -> None:
    hits = []
    for name, value in wanted.items():
        if name.startswith("x-") and not mode.endswith("-with-x"):
            continue
        same = repr(headers.get(name)) == repr(value)
        hits.append(name in headers and (value is None or same))
    expected = all(hits) if mode.startswith("all") else any(hits)
    assert HeadersMatch({"x-match": mode, **wanted}).matches(headers) is expected
