"""The log of commands: each of our messages is one line, whatever names clients use."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker_client.cli.logs import log_to_stderr


@contextmanager
def a_log(level: str) -> Iterator[None]:
    """Logging as a command sets it up, with a root logger without handlers."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    root.handlers[:] = []
    log_to_stderr(level)
    yield
    root.handlers[:] = handlers
    root.setLevel(before)


def test_control_characters_in_our_messages_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with a_log("info"):
        logging.getLogger("broker_client.server").info("%s", "a\r\nINFO forged\0\x1b[31m é")
        logging.getLogger("app").info("two\nlines")
    lines = capsys.readouterr().err.split("\n")
    assert [line.partition(": ")[2] or line for line in lines] == [
        "a\\r\\nINFO forged\\x00\\x1b[31m é",
        "two",
        "lines",
        "",
    ]


def test_traceback_of_ours_keeps_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with a_log("info"):
        try:
            raise ValueError("x")
        except ValueError:
            logging.getLogger("broker_client").exception("failed")
    assert len(capsys.readouterr().err.splitlines()) > 2
