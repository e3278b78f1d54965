from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.builders import EngineHarness


@pytest.fixture
def harness() -> Iterator[EngineHarness]:
    harness = EngineHarness()
    yield harness
    harness.engine.check_conservation()
