"""A short run of `chaos`, without kills; `make soak` has the long one with them."""

from __future__ import annotations

import random

import pytest

from tests.faults.chaos import run
from tests.support.managed import FaultyServer

SECONDS = 12.0


@pytest.mark.timeout(400)
async def test_nothing_is_lost_and_order_kept_whatever_happens_to_the_link_and_in_handlers(
    server: FaultyServer, chance: random.Random
) -> None:
    vhost = server.make_vhost()
    report = await run(server, vhost, SECONDS, chance, kills=False)
    server.delete_vhost(vhost)
    print(report)  # noqa: T201 - pytest shows it with a failure
    assert report.broken == []
    assert len(report.confirmed) == report.published > 500
    assert report.faults.total() >= 3
