"""Servers within the test's event loop, with any settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.listening import Listening

Listen = Callable[..., Awaitable[Listening]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    """Starts a server: ``listen(*addresses, engine={...}, **settings)``."""
    async with AsyncExitStack() as stack:

        async def listen(
            *addresses: str, engine: dict[str, Any] | None = None, **settings: Any
        ) -> Listening:
            started = Listening.started(addresses or ("127.0.0.1:0",), engine, **settings)
            return await stack.enter_async_context(started)

        yield listen
