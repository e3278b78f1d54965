"""Unit tests may choose their event loop: ``loop_factory = WarpLoop`` in the module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest


@pytest.hookimpl
def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    factory = getattr(getattr(item, "module", None), "loop_factory", None)
    return None if factory is None else {"chosen": factory}
