"""The log of the server: one line an event."""

from __future__ import annotations

import logging

import pytest

from broker_client.server.event_lines import log_event


def test_a_line_is_the_event_and_its_fields_without_the_empty_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "broker_client.server"):
        log_event(logging.INFO, "connection opened", peer="[::1]:5", name="", user=None, vhost="/")
    [record] = caplog.records
    assert record.getMessage() == "connection opened peer=[::1]:5 vhost=/"
    assert record.__dict__["fields"] == {"peer": "[::1]:5", "vhost": "/"}


def test_a_client_cannot_begin_a_line_or_a_field_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "broker_client.server"):
        log_event(logging.INFO, "event", name='x\nlogin refused user="admin"', other="a=b")
    [record] = caplog.records
    assert record.getMessage() == ('event name="x\\nlogin refused user=\\"admin\\"" other="a=b"')
