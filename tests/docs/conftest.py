"""Restores what the fragments of documents change in the whole process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Fragments set the levels of loggers, on which other tests depend."""
    loggers = [logging.getLogger(name) for name in ("", "broker_client", "aiormq", "aio_pika")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
