"""Arguments and requests in words, and rows without empty values."""

from __future__ import annotations

import pytest

from broker_client.dashboard.argument_words import duration, words_of
from broker_client.dashboard.audit import Audit, described
from broker_client.dashboard.rows import row_of


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (250, "250 ms"), (60_000, "1 min"), (90_500, "1 min 30 s 500 ms")],
)
def test_duration_is_as_people_say_it(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_days_have_a_plural() -> None:
    assert (duration(86_400_000), duration(172_800_000)) == ("1 day", "2 days")


def test_arguments_and_policy_are_told() -> None:
    queue = {
        "arguments": {"x-message-ttl": 1000, "x-overflow": "reject-publish", "x-own": 1},
        "effective_policy_definition": {"max-length": 10_000, "dead-letter-exchange": ""},
    }
    assert [(each["from"], each["text"]) for each in words_of(queue)] == [
        ("argument", "Messages expire after 1 s."),
        ("argument", "When it is full, publishers are refused."),
        ("argument", ""),
        ("policy", "It holds 10,000 ready messages at most."),
        ("policy", "Dead letters go to the default exchange."),
    ]


def test_arguments_that_are_none_are_nothing() -> None:
    assert words_of({"arguments": [], "effective_policy_definition": None}) == []


@pytest.mark.parametrize(
    ("method", "path", "action", "target"),
    [
        ("DELETE", "queues/%2F/a%2Fb/contents", "purge", "queue a/b in /"),
        ("DELETE", "queues/%2F/q", "delete", "queue q in /"),
        ("DELETE", "bindings/v/e/x/q/y/~", "unbind", "exchange x from queue y in v"),
        ("PUT", "users/bob", "put", "user bob"),
        ("POST", "something/else", "POST", "something/else"),
        ("PUT", "queues/{0}/{1}", "declare", "queue {1} in {0}"),
    ],
)
def test_request_is_reported_in_words(method: str, path: str, action: str, target: str) -> None:
    assert described(method, path) == (action, target)


def test_audit_is_bounded_and_tells_what_is_new() -> None:
    audit = Audit()
    for number in range(1001):
        audit.record("u" if number % 2 else "v", "::1", "purge", str(number), 204)
    assert audit.written == 1001
    assert [each.target for each in audit.latest(2)] == ["1000", "999"]
    assert [each.target for each in audit.latest(2, "u")] == ["999", "997"]
    assert [each.target for each in audit.since(999)] == ["999", "1000"]
    assert audit.since(1001) == []
    assert len(audit.since(0)) == 1000


def test_row_of_an_idle_queue_is_short() -> None:
    queue = {
        "vhost": "/",
        "name": "q",
        "state": "running",
        "messages_ready": 0,
        "message_stats": [],
    }
    assert row_of(queue, 0.0) == {"vhost": "/", "name": "q"}


def test_age_is_never_made_up() -> None:
    queue = {"vhost": "/", "name": "q", "messages_ready": 1}
    assert "age" not in row_of(queue, 1000.0)
    assert "age" not in row_of({**queue, "head_message_timestamp": None}, 1000.0)
    assert row_of({**queue, "head_message_timestamp": 900}, 1000.0)["age"] == 100
    assert row_of({**queue, "broker_client": {"age": 7.9}}, 1000.0)["age"] == 7
