"""Unit tests may choose their event loop: ``loop_factory = WarpLoop`` in the module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    module = getattr(item, "module", None)
    return {"chosen": getattr(module, "loop_factory", asyncio.new_event_loop)}
