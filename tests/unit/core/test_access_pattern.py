"""Patterns of permissions mean what they mean to RabbitMQ, and take bounded time."""

from __future__ import annotations

import sys
import time

import pytest

from broker_client.core.access_pattern import MAX_PATTERN_BYTES, AccessPattern
from broker_client.errors import AccessControlError, UnsupportedError


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*", "anything\nat all", True),
        ("", "", True),
        ("", "x", False),
        ("^$", "x", False),
        ("ord", "my-orders", True),  # not anchored
        ("^ord", "my-orders", False),
        ("^(?!amq\\.).*", "amq.topic", False),
        ("^(?!amq\\.).*", "orders", True),
        ("^orders$|^events$", "events", True),
        ("^(a)\\1$", "aa", True),
        ("(?i)^ORDERS$", "orders", True),
        ("^[[:alpha:]]+$", "orders", True),
        ("^[[:alpha:]]+$", "orders1", False),
        ("^(?>a+)b", "aab", True),
        ("^a{e}$", "a{e}", True),  # to PCRE no quantifier, and so itself
        ("^a{e}$", "b", False),
        ("^a{,3}$", "a{,3}", True),
        ("^a{2,3}$", "aaa", True),
        ("^a{2}$", "aaa", False),
        ("^{x}", "{x}", True),
        ("^.{2}$", "é", True),  # bytes, as RabbitMQ has them
        ("^\\w+$", "é", False),
        ("é", "café", True),
    ],
)
def test_pattern_matches_as_in_rabbitmq(pattern: str, name: str, expected: bool) -> None:
    compiled = AccessPattern(pattern)
    compiled.check()
    assert compiled.matches(name) is expected
    assert compiled.matches(name) is expected  # from the verdicts kept


@pytest.mark.parametrize("pattern", ["(", "[", "a**", "(?<n", "\\", "(" * 2000 + ")" * 2000])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(AccessControlError, match="is invalid: "):
        AccessPattern(pattern).check()


def test_pattern_that_is_too_long_is_refused_without_repeating_it() -> None:
    with pytest.raises(AccessControlError, match="4,096 are allowed") as caught:
        AccessPattern("x" * (MAX_PATTERN_BYTES + 1)).check()
    assert len(str(caught.value)) < 200


SLOW = ["^(a|a)*$", "^(a|aa)+$", "^(a?){60}a{60}$", "^([a-z]+)*(1)\\2$"]


@pytest.mark.parametrize("pattern", SLOW)
def test_pattern_of_exponential_time_costs_it_once(pattern: str) -> None:
    compiled = AccessPattern(pattern)
    names = ["a" * (200 + n) + "!" for n in range(50)]
    began = time.process_time()
    assert not any(map(compiled.matches, names))
    assert time.process_time() - began < 2.0  # 50 of them; one without a limit takes years


def test_pattern_that_was_too_slow_refuses_everything_and_says_why() -> None:
    compiled = AccessPattern("^(a|a)*$")
    assert compiled.matches("aaa")
    assert not compiled.matches("a" * 200 + "!")
    assert not compiled.matches("aaaa")
    assert compiled.problem is not None
    assert "takes too long" in compiled.problem


def test_verdicts_do_not_grow_without_bound() -> None:
    compiled = AccessPattern("^a")
    assert all(compiled.matches(f"a{n}") for n in range(25_000))
    assert sys.getsizeof(compiled._verdicts) < 1_000_000  # noqa: SLF001 - memory has no public face


def test_pattern_without_the_extra_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(UnsupportedError, match=r"\[server\]"):
        AccessPattern("^a").check()
    kept = AccessPattern("^a")
    assert not kept.matches("a")
    assert kept.problem is not None
    AccessPattern(".*").check()  # needs none
