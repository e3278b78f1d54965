"""Vhosts asserted and deleted by rascal and by our client over the server's management API."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from broker_client import Broker
from tests.interop.conftest import RunRascal
from tests.support.served import Served

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def served() -> Iterator[Served]:
    with Served("--http", "127.0.0.1:0") as server:
        yield server


def http_url(served: Served) -> str:
    (url,) = [each for each in served.addresses if each.startswith("http://")]
    return url


def vhosts(served: Served) -> list[str]:
    request = urllib.request.Request(f"{http_url(served)}/api/vhosts?columns=name")
    request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
    with urllib.request.urlopen(request, timeout=60) as response:
        return sorted(each["name"] for each in json.load(response))


def rascal_config(served: Served, vhost: str) -> dict[str, Any]:
    management = http_url(served).replace("http://", "http://guest:guest@")
    return {
        "vhosts": {
            vhost: {
                "assert": True,
                "connection": {"url": served.url(vhost), "management": {"url": management}},
                "exchanges": ["orders"],
                "queues": ["q"],
                "bindings": ["orders -> q"],
                "publications": {"orders": {"exchange": "orders"}},
            }
        }
    }


async def test_rascal_asserts_its_vhost_and_deletes_it(
    served: Served, run_rascal: RunRascal
) -> None:
    config = rascal_config(served, "shop")
    messages = [{"body": {"n": 1}, "key": "k"}]
    await run_rascal(
        {"do": "publish", "publication": "orders", "messages": messages, "config": config}
    )
    assert vhosts(served) == ["/", "shop"]
    await run_rascal({"do": "nuke", "config": config})
    assert vhosts(served) == ["/"]


async def test_rascal_asserts_the_vhost_whose_name_is_a_slash(
    served: Served, run_rascal: RunRascal
) -> None:
    job = {"do": "publish", "publication": "orders", "messages": [{"body": "x", "key": "k"}]}
    await run_rascal({**job, "config": rascal_config(served, "/")})
    assert vhosts(served) == ["/"]


async def test_our_client_asserts_its_vhost_and_deletes_it(served: Served) -> None:
    management = {"url": http_url(served).replace("http://", "http://guest:guest@")}
    connection = {"url": served.url("a/b c"), "management": management}
    broker = await Broker.create({"vhosts": {"a/b c": {"assert": True, "connection": connection}}})
    assert vhosts(served) == ["/", "a/b c"]
    await broker.nuke()
    assert vhosts(served) == ["/"]
