"""A running node says which pattern refuses everything."""

from __future__ import annotations

import logging

import pytest

from broker_client.core.access import Permission
from broker_client.node.node import Node


async def test_pattern_that_takes_too_long_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node("n")
    node.access.add_user("ann", "secret")
    node.access.set_permissions("ann", "/", configure="", write="^(a|a)*$", read="")
    with caplog.at_level(logging.WARNING, "broker_client.node"):
        for n in range(3):
            assert not node.access.may("ann", "/", Permission.WRITE, "a" * (100 + n) + "!")
    (record,) = caplog.records
    assert "user 'ann' in vhost '/'" in record.getMessage()
    assert "takes too long" in record.getMessage()
    await node.close()
