from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.builders import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.engine.check_conservation()
