"""A cluster of three, whose nodes stop and start one after the other under load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.cluster import run
from tests.support.left_out import missing
from tests.support.rabbitmq_cluster import Cluster
from tests.support.rabbitmq_installed import installed

pytestmark = [pytest.mark.rabbitmq, pytest.mark.own_versions, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    fours = [each for each in installed() if each.version >= (4, 0)]
    if not fours:
        missing("RabbitMQ 4")
    with Cluster(fours[-1]) as cluster:
        yield cluster


async def test_rolling_restart_under_load_loses_nothing(cluster: Cluster) -> None:
    faults = [("restart", node) for node in cluster.nodes]
    report = await run(cluster, cluster.make_vhost(), faults)
    print(report)  # noqa: T201 - shown with a failure
    assert report.connects >= 2
    assert report.is_good


@pytest.mark.parametrize("kind", ["kill", "pause"])
async def test_node_in_use_that_goes_under_load_loses_nothing(cluster: Cluster, kind: str) -> None:
    report = await run(cluster, cluster.make_vhost(), [(kind, None)])
    print(report)  # noqa: T201 - shown with a failure
    assert report.connects >= 2
    assert report.is_good


async def test_node_that_is_cut_off_from_the_others_under_load_loses_nothing(
    cluster: Cluster,
) -> None:
    report = await run(cluster, cluster.make_vhost(), [("partition", None)], pause=5.0)
    print(report)  # noqa: T201 - shown with a failure
    assert cluster.network.connections >= len(cluster.nodes)  # they had to go through it
    assert report.is_good
