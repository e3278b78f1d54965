"""Counts of connections and of failed logins."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.config.server import ServerConfig
from broker_client.errors import ReplyError
from broker_client.server.admission import Admission
from tests.support.clock import ManualClock


def admission(clock: ManualClock | None = None, **limits: Any) -> Admission:
    return Admission(ServerConfig(**limits), (clock or ManualClock()).now)


def test_an_address_is_shut_out_until_its_failures_are_a_second_old() -> None:
    clock = ManualClock()
    guard = admission(clock, max_login_failures=2)
    guard.login_failed("a")
    clock.advance(0.5)
    assert not guard.is_shut_out("a")
    guard.login_failed("a")
    assert guard.is_shut_out("a")
    assert not guard.is_shut_out("b")
    clock.advance(0.5)
    assert not guard.is_shut_out("a")


def test_without_a_limit_no_address_is_shut_out() -> None:
    guard = admission(max_login_failures=0)
    for _ in range(100):
        guard.login_failed("a")
    assert not guard.is_shut_out("a")


def test_addresses_that_fail_once_do_not_pile_up() -> None:
    guard = admission(max_login_failures=1)
    for number in range(10_001):
        guard.login_failed(str(number))
    assert not guard.is_shut_out("0")  # the oldest is forgotten
    assert guard.is_shut_out("10000")


def test_a_user_who_leaves_makes_room() -> None:
    guard = admission(max_connections=3, max_connections_per_user=2)
    guard.admit("anna", "/")
    guard.admit("anna", "/")
    with pytest.raises(ReplyError, match="user connection limit"):
        guard.admit("anna", "/")
    guard.admit("ben", "/")
    with pytest.raises(ReplyError, match="node connection limit"):
        guard.admit("cleo", "/")
    guard.leave("anna")
    guard.admit("cleo", "/")
    assert guard.connection_count == 3
