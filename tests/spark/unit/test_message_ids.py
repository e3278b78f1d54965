"""Message ids: the same on a retry, whatever the order; different for different messages."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from broker_client.spark.writing.message_ids import ContentIds, PositionIds, streaming_scope

Message = tuple[str, str, dict[str, str] | None, bytes]
messages = st.lists(
    st.tuples(
        st.sampled_from(["", "ex"]),
        st.sampled_from(["", "k", "key"]),
        st.none()
        | st.dictionaries(st.text(max_size=2), st.text(max_size=2), min_size=1, max_size=2),
        st.binary(max_size=3),
    ),
    max_size=30,
)


def content(rows: list[Message], scope: str = "q/1", partition: int = 0) -> list[str]:
    ids = ContentIds(scope, partition, "orders")
    return [ids.next(*row) for row in rows]


@given(messages, st.randoms(use_true_random=False))
def test_content_ids_are_the_same_set_in_any_order(
    rows: list[Message], shuffler: random.Random
) -> None:
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    assert sorted(content(rows)) == sorted(content(shuffled))


@given(messages)
def test_content_ids_of_equal_and_unequal_rows_are_distinct(rows: list[Message]) -> None:
    ids = content(rows)
    assert len(set(ids)) == len(rows)


@given(messages)
def test_content_id_follows_its_row(rows: list[Message]) -> None:
    before: dict[str, set[str]] = {}
    for row, name in zip(rows, content(rows), strict=True):
        before.setdefault(repr(row), set()).add(name)
    after: dict[str, set[str]] = {}
    for row, name in zip(reversed(rows), content(rows[::-1]), strict=True):
        after.setdefault(repr(row), set()).add(name)
    assert before == after


def test_content_ids_are_those_of_every_version() -> None:
    """A retry after an upgrade must have the ids of the first attempt."""
    rows: list[Message] = [("ex", "k", None, b"body"), ("ex", "k", {"a": "1"}, b"body")]
    rows += [("ex", "other", None, b"body"), ("ex", "k", None, b"body")]
    assert content(rows, "q/1", 3) == [
        "5b7f60e7c6011e4f8ade470f5e0fdd04-0",
        "809c0393427abf65b0636f2e7dc6f821-0",
        "1a79319df9e50fe7bd2556b53dfb680a-0",
        "5b7f60e7c6011e4f8ade470f5e0fdd04-1",
    ]


def test_content_ids_differ_by_scope_and_by_partition() -> None:
    row: list[Message] = [("", "k", None, b"x")]
    assert len({*content(row), *content(row, "q/2"), *content(row, partition=1)}) == 3


def test_fields_cannot_run_into_each_other() -> None:
    ids = {
        *content([("ab", "c", None, b"")]),
        *content([("a", "bc", None, b"")]),
        *content([("a", "b", None, b"c")]),
    }
    assert len(ids) == 3


def test_order_of_headers_does_not_matter() -> None:
    one: list[Message] = [("", "", {"a": "1", "b": "2"}, b"x")]
    other: list[Message] = [("", "", {"b": "2", "a": "1"}, b"x")]
    assert content(one) == content(other)


def test_position_ids_move_with_the_row_order_which_is_why_they_are_not_the_default() -> None:
    ids = PositionIds("q/1", 3)
    assert [ids.next("", "", None, body) for body in (b"x", b"y")] == ["q/1-3-0", "q/1-3-1"]


def test_scope_of_a_batch_names_query_and_batch() -> None:
    assert streaming_scope("query", "7") == "query/7"
