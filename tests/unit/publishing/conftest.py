"""A publish queue for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.publish_queue import PublishQueueHarness


@pytest.fixture
async def harness() -> AsyncIterator[PublishQueueHarness]:
    harness = PublishQueueHarness()
    yield harness
    await harness.close()
