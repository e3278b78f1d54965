"""What each tag may see, with and without permissions in the vhost, here and on RabbitMQ."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.server.http.conftest import Api, Managed

TAGS = ("management", "policymaker", "monitoring", "administrator")

ANYBODY = ("whoami", "overview", "extensions", "cluster-name")
CONNECTED = ("connections", "channels", "consumers")
"""Everybody may ask for these, and sees what it may."""
CHECKS = ("health/checks/alarms", "health/checks/local-alarms", "health/checks/virtual-hosts")
MEMBERS = (
    "exchanges/{v}",
    "exchanges/{v}/amq.topic",
    "exchanges/{v}/amq.topic/bindings/source",
    "exchanges/{v}/amq.topic/bindings/destination",
    "queues/{v}",
    "queues/{v}/q",
    "queues/{v}/q/bindings",
    "bindings/{v}",
    "bindings/{v}/e/amq.topic/q/q",
    "bindings/{v}/e/amq.topic/q/q/key",
    "bindings/{v}/e/amq.topic/e/amq.fanout",
    "bindings/{v}/e/amq.topic/e/amq.fanout/key",
    "vhosts/{v}/connections",
    "vhosts/{v}/channels",
    "policies/{v}",
    "operator-policies/{v}",
)
"""Those who have permissions in the vhost, of whatever kind."""
WATCHERS = ("consumers/{v}", "vhost-limits/{v}")
"""Besides, those who watch the broker."""
POLICYMAKERS_OF_VHOST = (
    "policies/{v}/p",
    "parameters/vhost-limits/{v}",
    "parameters/vhost-limits/{v}/limits",
    "parameters/operator_policy/{v}/o",
)
POLICYMAKERS = (
    "parameters",
    "parameters/vhost-limits",
    "global-parameters",
    "global-parameters/internal_cluster_id",
)
MONITORS = ("nodes", "nodes/{node}")
ADMINISTRATORS = (
    "vhosts/{v}",
    "vhosts/{v}/permissions",
    "vhosts/{v}/topic-permissions",
    "users",
    "users/guest",
    "users/guest/permissions",
    "users/guest/topic-permissions",
    "users/without-permissions",
    "permissions",
    "permissions/{v}/guest",
    "topic-permissions",
    "topic-permissions/{v}/guest",
    "operator-policies/{v}/o",
    "definitions",
    "definitions/{v}",
)
LISTS_OF_MEMBERS = ("exchanges", "queues", "bindings", "policies", "operator-policies")
LISTS_OF_WATCHERS = ("vhosts", "vhost-limits")
"""Everybody may ask for the lists of both kinds; they have what is of vhosts that one may see."""
NOT_HERE = (
    "/api/connections/{name}",  # of what is listed
    "/api/connections/{name}/channels",
    "/api/channels/{name}",
    "/api/aliveness-test/{vhost}",  # publishes: it needs permissions
    "/api/health/checks/node-is-quorum-critical",  # as other checks
    "/api/health/checks/node-is-mirror-sync-critical",
    "/api/health/checks/port-listener/{port}",
    "/api/health/checks/protocol-listener/{protocol}",
    "/api/queues/{vhost}/{name}/in-flight",  # beyond RabbitMQ: as a purge
    "/api/queues/{vhost}/{name}/deferred",
)


def expected(path: str, tag: str, is_member: bool) -> int:
    """The status of an answer."""
    is_administrator = tag == "administrator"
    visible = 200 if is_member or is_administrator else 404
    if path in MEMBERS:
        return visible
    if path in WATCHERS:
        return 200 if tag == "monitoring" else visible
    if path in POLICYMAKERS_OF_VHOST:
        return visible if tag in ("policymaker", "administrator") else 401
    if path in POLICYMAKERS:
        return 200 if tag in ("policymaker", "administrator") else 401
    if path in MONITORS:
        return 200 if tag in ("monitoring", "administrator") else 401
    if path in ADMINISTRATORS:
        return 200 if is_administrator else 401
    return 200


ALL = (
    *ANYBODY,
    *CONNECTED,
    *CHECKS,
    *MEMBERS,
    *WATCHERS,
    *POLICYMAKERS_OF_VHOST,
    *POLICYMAKERS,
    *MONITORS,
    *ADMINISTRATORS,
    *LISTS_OF_MEMBERS,
    *LISTS_OF_WATCHERS,
)


@pytest.fixture(params=[True, False], ids=["with permissions", "without permissions"])
def is_member(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=TAGS)
async def caller(
    request: pytest.FixtureRequest, managed: Managed, is_member: bool
) -> AsyncIterator[tuple[str, httpx.BasicAuth]]:
    """A tag, and a user who has it; the vhost of the test has one of everything."""
    tag, user = request.param, f"{request.param}-{managed.vhost.partition('/')[2][:8]}"
    nothing = {"configure": "", "write": "", "read": ""}
    limit = {"pattern": "^none$", "definition": {"max-length": 1}}
    put: list[tuple[str, dict[str, Any]]] = [
        (f"users/{user}", {"password": "secret", "tags": tag}),
        ("permissions/{v}/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("topic-permissions/{v}/guest", {"exchange": "amq.topic", "write": ".*", "read": ".*"}),
        ("queues/{v}/q", {}),
        ("policies/{v}/p", limit),
        ("operator-policies/{v}/o", limit),
        ("vhost-limits/{v}/max-queues", {"value": 100}),
        ("global-parameters/internal_cluster_id", {"value": "of a test"}),
    ]
    if is_member:
        put.append(("permissions/{v}/" + user, nothing))
    for path, body in put:
        if path.startswith("global") and managed.is_rabbitmq:
            continue  # it has one
        response = await managed.client.put(managed.path(path), json=body)
        assert response.status_code < 300, (path, response.text)
    for end in ("q/q", "e/amq.fanout"):
        path = managed.path("bindings/{v}/e/amq.topic/") + end
        await managed.client.post(path, json={"routing_key": "key"})
    yield tag, httpx.BasicAuth(user, "secret")
    await managed.client.delete(managed.path(f"users/{user}"))


async def test_what_a_tag_may_see_is_what_it_may_see_on_rabbitmq(
    managed: Managed, caller: tuple[str, httpx.BasicAuth], is_member: bool
) -> None:
    tag, auth = caller
    overview = (await managed.client.get(managed.path("overview"))).json()
    wrong = []
    for path in ALL:
        url = managed.path(path.replace("{node}", overview["node"]))
        status = (await managed.client.get(url, auth=auth)).status_code
        wanted = {expected(path, tag, is_member)}
        if managed.is_rabbitmq and not managed.is_rabbitmq_4 and 404 in wanted:
            wanted = {401}  # RabbitMQ 3: tells a vhost that the user may not see from none
            if path == "consumers/{v}":
                wanted = {200}
        if status not in wanted:
            wrong.append((path, status, wanted))
    assert wrong == []


async def test_lists_have_what_is_in_vhosts_that_one_may_see(
    managed: Managed, caller: tuple[str, httpx.BasicAuth], is_member: bool
) -> None:
    tag, auth = caller
    is_seen = is_member or tag == "administrator"
    for path in (*LISTS_OF_MEMBERS, *LISTS_OF_WATCHERS):
        listed = (await managed.client.get(managed.path(path), auth=auth)).json()
        key = "name" if path == "vhosts" else "vhost"
        has_vhost = managed.vhost in {each[key] for each in listed}
        if path in LISTS_OF_WATCHERS:
            assert has_vhost == (is_seen or tag == "monitoring"), path
        else:
            assert has_vhost == is_seen, path


async def test_every_path_is_tried_here(api: Api) -> None:
    described = (await api.client.get("/api/openapi.json")).json()["paths"]
    paths = [path for path, methods in described.items() if "get" in methods]
    for path in paths:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))
        is_tried = any(re.fullmatch(pattern, f"/api/{each}") for each in ALL)
        assert is_tried != (path in NOT_HERE), path
