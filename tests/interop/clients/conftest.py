"""One server for other clients, which are given its address only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served import Served


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as server:
        yield server


@pytest.fixture
def url(served: Served) -> str:
    return served.url()
