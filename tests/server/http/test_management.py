"""Our management API: its own endpoints, clients, limits and hostile requests."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import aio_pika
import httpx
import pytest
from starlette.requests import Request

from broker_client.config.server import ServerConfig
from broker_client.errors import StoreError
from broker_client.server.admission import Admission
from broker_client.server.http.application import OPERATIONS
from broker_client.server.http.callers import authenticated
from broker_client.server.http.calls import MAX_BODY_BYTES
from broker_client.server.http.channels import RequestChannel
from broker_client.server.http.errors import Refusal
from tests.server.http.conftest import Api
from tests.support.clock import ManualClock
from tests.support.eventually import eventually


async def declare(api: Api, name: str = "q", **body: Any) -> None:
    assert (await api.client.put(f"/api/queues/%2F/{name}", json=body)).status_code == 201


async def publish(api: Api, name: str = "q", payload: str = "hello") -> None:
    body = {
        "properties": {"delivery_mode": 2, "message_id": payload},
        "routing_key": name,
        "payload": payload,
        "payload_encoding": "string",
    }
    response = await api.client.post("/api/exchanges/%2F/amq.default/publish", json=body)
    assert response.json() == {"routed": True}


async def shown(api: Api, path: str, **query: Any) -> Any:
    response = await api.client.get(path, params=query or None)
    assert response.status_code == 200, response.text
    return response.json()


def receiver(got: list[str | None]) -> Callable[[Any], Awaitable[None]]:
    async def receive(message: Any) -> None:
        got.append(message.message_id)

    return receive


# --------------------------------------------------------------------------- clients


async def test_connection_channel_and_consumer_are_shown(api: Api) -> None:
    await declare(api)
    connection = await aio_pika.connect(api.amqp_url(), client_properties={"connection_name": "me"})
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(7)
        queue = await channel.get_queue("q")
        await publish(api)
        got: list[str | None] = []
        tag = await queue.consume(receiver(got))
        await eventually(lambda: bool(got))
        (one,) = await shown(api, "/api/connections")
        assert (one["user_provided_name"], one["user"], one["vhost"]) == ("me", "guest", "/")
        assert (one["protocol"], one["channels"], one["state"]) == ("AMQP 0-9-1", 1, "running")
        assert one["peer_host"] == "127.0.0.1"
        assert one["name"].startswith(f"127.0.0.1:{one['peer_port']} -> ")
        (of_one,) = await shown(
            api, f"/api/connections/{httpx.URL('/' + one['name']).path[1:]}/channels"
        )
        (a_channel,) = await shown(api, "/api/channels")
        assert a_channel == of_one
        assert a_channel["messages_unacknowledged"] == 1
        assert a_channel["consumer_count"] == 1
        (consumer,) = await shown(api, "/api/consumers/%2F")
        assert (consumer["consumer_tag"], consumer["prefetch_count"]) == (tag, 7)
        assert consumer["channel_details"]["connection_name"] == one["name"]
        assert consumer["broker_client"]["in_flight"] == 1
        queue_shown = await shown(api, "/api/queues/%2F/q")
        assert queue_shown["messages_unacknowledged"] == 1
        assert [each["consumer_tag"] for each in queue_shown["consumer_details"]] == [tag]


async def test_deleted_connection_is_closed_with_the_reason(api: Api) -> None:
    connection = await aio_pika.connect(api.amqp_url())
    closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.close_callbacks.add(lambda _, error: closed.set_result(error))
    (one,) = await shown(api, "/api/connections")
    path = "/api/connections/" + quote(one["name"])
    response = await api.client.delete(path, headers={"X-Reason": "moved house"})
    assert response.status_code == 204
    error = await asyncio.wait_for(closed, 60)
    assert "CONNECTION_FORCED - moved house" in str(error)
    await eventually(lambda: not api.server.connections())
    assert await shown(api, "/api/connections") == []


async def test_connections_of_others_are_not_for_those_with_the_tag_management_only(
    api: Api,
) -> None:
    ann = api.login("ann", "management")
    async with await aio_pika.connect(api.amqp_url()) as theirs:
        await theirs.channel()
        for path in ("/api/connections", "/api/channels"):
            assert (await api.client.get(path, auth=ann)).json() == []
        (one,) = await shown(api, "/api/connections")
        path = "/api/connections/" + quote(one["name"])
        assert (await api.client.delete(path, auth=ann)).status_code == 404
        bob = api.login("bob", "monitoring")
        assert len((await api.client.get("/api/connections", auth=bob)).json()) == 1
        assert (await api.client.delete(path, auth=bob)).status_code == 401
        assert len(api.server.connections()) == 1


async def test_deleted_user_loses_its_connections(api: Api) -> None:
    api.login("ann")
    connection = await aio_pika.connect(api.amqp_url(user="ann"))
    assert (await api.client.delete("/api/users/ann")).status_code == 204
    await eventually(lambda: not api.server.connections())
    await connection.close()
    with pytest.raises(Exception, match="ACCESS_REFUSED"):
        await aio_pika.connect(api.amqp_url(user="ann"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"default_queue_type": "stream"}, "this broker has no streams"),
        ({"tracing": True}, "tracing is not supported"),
        ({"description": 5}, "description must be a string"),
        ({"tags": [1]}, "tags must be a list or a text"),
    ],
)
async def test_metadata_that_would_be_ignored_is_refused(
    api: Api, given: dict[str, Any], why: str
) -> None:
    refused = await api.client.put("/api/vhosts/typed", json=given)
    assert refused.status_code == 400
    assert why in refused.json()["reason"]
    assert (await api.client.get("/api/vhosts/typed")).status_code == 404


async def test_deleted_vhost_loses_its_connections(api: Api) -> None:
    await api.client.put("/api/vhosts/shop")
    connection = await aio_pika.connect(api.amqp_url("shop"))
    assert (await api.client.delete("/api/vhosts/shop")).status_code == 204
    await eventually(lambda: not api.server.connections())
    await connection.close()


# --------------------------------------------------------------------------- beyond RabbitMQ


async def test_paused_queue_delivers_nothing_until_it_is_resumed(api: Api) -> None:
    await declare(api)
    assert (await api.client.put("/api/queues/%2F/q/pause")).status_code == 204
    assert (await shown(api, "/api/queues/%2F/q"))["state"] == "paused"
    async with await aio_pika.connect(api.amqp_url()) as connection:
        queue = await (await connection.channel()).get_queue("q")
        got: list[str | None] = []
        await queue.consume(receiver(got), no_ack=True)
        await publish(api, payload="one")
        assert (await shown(api, "/api/queues/%2F/q"))["messages_ready"] == 1
        assert got == []
        assert (await api.client.put("/api/queues/%2F/q/resume")).status_code == 204
        await eventually(lambda: got == ["one"])


async def test_in_flight_messages_are_shown_and_dropped(api: Api) -> None:
    await declare(api)
    await publish(api, payload="held")
    async with await aio_pika.connect(api.amqp_url()) as connection:
        queue = await (await connection.channel()).get_queue("q")
        await queue.get()
        (held,) = await shown(api, "/api/queues/%2F/q/in-flight")
        assert (held["message_id"], held["attempts"]) == ("held", 1)
        response = await api.client.post(
            "/api/queues/%2F/q/purge", json={"ready": False, "in_flight": True}
        )
        assert response.json() == {"ready": 0, "deferred": 0, "in_flight": 1}
        assert await shown(api, "/api/queues/%2F/q/in-flight") == []


async def deferred(api: Api, *names: str) -> list[dict[str, Any]]:
    """Delay a publish of each name, and list the waiting messages."""
    for name in names:
        body = {
            "properties": {"headers": {"x-delay": 3_600_000}, "message_id": name},
            "routing_key": "q",
            "payload": name,
            "payload_encoding": "string",
        }
        await api.client.post("/api/exchanges/%2F/amq.default/publish", json=body)
    found: list[dict[str, Any]] = await shown(api, "/api/queues/%2F/q/deferred")
    return found


async def test_deferred_messages_are_shown_run_and_cancelled(api: Api) -> None:
    await declare(api)
    waiting = {each["message_id"]: each["id"] for each in await deferred(api, "a", "b", "c")}
    assert waiting.keys() == {"a", "b", "c"}
    queue = await shown(api, "/api/queues/%2F/q")
    assert (queue["messages"], queue["broker_client"]["deferred"]) == (0, 3)
    path = "/api/queues/%2F/q/deferred"
    ran = await api.client.post(f"{path}/run", json={"ids": [waiting["b"]]})
    assert ran.json() == {"count": 1}
    cancelled = await api.client.post(f"{path}/cancel", json={"ids": [waiting["a"]]})
    assert cancelled.json() == {"count": 1}
    assert [each["message_id"] for each in await shown(api, path)] == ["c"]
    body = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
    got = (await api.client.post("/api/queues/%2F/q/get", json=body)).json()
    assert [each["payload"] for each in got] == ["b"]
    assert (await api.client.post(f"{path}/run", json={})).json() == {"count": 1}


@pytest.mark.parametrize("ids", ["all", [1, "2"], [True], {"a": 1}])
async def test_ids_that_are_none_are_refused(api: Api, ids: object) -> None:
    await declare(api)
    await deferred(api, "a")
    response = await api.client.post("/api/queues/%2F/q/deferred/cancel", json={"ids": ids})
    assert response.status_code == 400
    assert len(await shown(api, "/api/queues/%2F/q/deferred")) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "pause"),
        ("PUT", "resume"),
        ("POST", "purge"),
        ("POST", "deferred/run"),
        ("POST", "deferred/cancel"),
    ],
)
async def test_exclusive_queue_of_a_connection_is_changed_by_no_other(
    api: Api, method: str, path: str
) -> None:
    connection = await aio_pika.connect(api.amqp_url())
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue("q", exclusive=True)
        await publish(api)
        response = await api.client.request(method, f"/api/queues/%2F/q/{path}", json={})
        assert response.status_code == 400
        assert "RESOURCE_LOCKED" in response.json()["reason"]
        queue = await shown(api, "/api/queues/%2F/q")
        assert (queue["messages_ready"], queue["state"]) == (1, "running")
        assert await shown(api, "/api/queues/%2F/q/in-flight") == []


async def test_looking_at_messages_is_no_attempt(api: Api) -> None:
    await declare(api, arguments={"x-delivery-limit": 1})
    await publish(api)
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for _ in range(5):
        got = await api.client.post("/api/queues/%2F/q/get", json=body)
        assert len(got.json()) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "queues/%2F/q"),
        ("DELETE", "queues/%2F/q"),
        ("DELETE", "queues/%2F/q/contents"),
        ("PUT", "queues/%2F/q/pause"),
        ("PUT", "queues/%2F/q/resume"),
        ("POST", "queues/%2F/q/purge"),
        ("POST", "queues/%2F/q/deferred/run"),
        ("POST", "queues/%2F/q/deferred/cancel"),
        ("GET", "queues/%2F/q/in-flight"),
        ("GET", "queues/%2F/q/deferred"),
        ("PUT", "exchanges/%2F/x"),
        ("POST", "bindings/%2F/e/amq.topic/q/q"),
        ("GET", "aliveness-test/%2F"),
    ],
)
async def test_user_without_permissions_for_a_queue_may_not_use_it(
    api: Api, method: str, path: str
) -> None:
    await declare(api)
    await publish(api)
    ann = api.login("ann", "management")
    api.node.access.set_permissions("ann", "/", configure="^own", write="^own", read="^own")
    response = await api.client.request(
        method, f"/api/{path}", auth=ann, json=None if method == "GET" else {}
    )
    assert response.status_code == 401
    queue = await shown(api, "/api/queues/%2F/q")
    assert (queue["messages_ready"], queue["state"]) == (1, "running")


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_topic_permissions_hold_for_all_routing_keys_of_a_publish(
    api: Api, header: str
) -> None:
    await declare(api)
    await api.client.post("/api/bindings/%2F/e/amq.topic/q/q", json={"routing_key": "#"})
    ann = api.login("ann", "management")
    api.node.access.set_topic_permissions("ann", "/", "amq.topic", write="^own", read="")
    body = {"routing_key": "own", "payload": "", "properties": {"headers": {header: ["other"]}}}
    response = await api.client.post("/api/exchanges/%2F/amq.topic/publish", json=body, auth=ann)
    assert response.status_code == 401
    assert "access to topic 'other'" in response.json()["reason"]
    assert (await shown(api, "/api/queues/%2F/q"))["messages"] == 0


async def test_impersonator_publishes_with_the_name_of_another(api: Api) -> None:
    await declare(api)
    body = {"routing_key": "q", "payload": "", "properties": {"user_id": "guest"}}
    for tags, status in ((["management"], 400), (["management", "impersonator"], 200)):
        auth = api.login("ann", *tags)
        path = "/api/exchanges/%2F/amq.default/publish"
        assert (await api.client.post(path, json=body, auth=auth)).status_code == status


async def test_policy_counts_at_once_and_is_reported(api: Api) -> None:
    await declare(api)
    for n in range(3):
        await publish(api, payload=str(n))
    body = {"pattern": "^q$", "definition": {"max-length": 1}, "apply-to": "queues"}
    assert (await api.client.put("/api/policies/%2F/short", json=body)).status_code == 201
    queue = await shown(api, "/api/queues/%2F/q")
    assert (queue["policy"], queue["messages"]) == ("short", 1)
    assert queue["effective_policy_definition"] == {"max-length": 1}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("vhost-limits/%2F/limits", {"max-queues": 3}),
        ("operator_policy/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}}),
    ],
)
async def test_what_is_for_administrators_is_so_among_the_parameters(
    api: Api, path: str, value: dict[str, Any]
) -> None:
    ann = api.login("ann", "policymaker")
    path = f"/api/parameters/{path}"
    assert (await api.client.put(path, json={"value": value}, auth=ann)).status_code == 401
    assert (await api.client.put(path, json={"value": value})).status_code == 201
    assert (await api.client.get(path, auth=ann)).json()["vhost"] == "/"
    assert (await api.client.delete(path, auth=ann)).status_code == 401
    assert (await api.client.delete(path)).status_code == 204
    response = await api.client.put(
        "/api/parameters/vhost-limits/%2F/other", json={"value": {"max-queues": 3}}
    )
    assert (response.status_code, "named limits" in response.json()["reason"]) == (400, True)


async def test_parameters_of_other_vhosts_are_not_for_policymakers(api: Api) -> None:
    await api.client.put("/api/vhosts/shop")
    await api.client.put("/api/vhost-limits/shop/max-queues", json={"value": 3})
    ann = api.login("ann", "policymaker")
    assert (await api.client.get("/api/parameters", auth=ann)).json() == []
    response = await api.client.get("/api/parameters/vhost-limits/shop/limits", auth=ann)
    assert response.status_code == 404


async def test_tag_policymaker_sets_policies_in_its_vhosts_only(api: Api) -> None:
    await api.client.put("/api/vhosts/shop")
    ann = api.login("ann", "policymaker", vhost="shop")
    bob = api.login("bob", "management", vhost="shop")
    body = {"pattern": "^q$", "definition": {"max-length": 1}, "apply-to": "queues"}
    for auth, path, status in (
        (bob, "policies/shop/p", 401),
        (ann, "policies/%2F/p", 404),
        (ann, "operator-policies/shop/p", 401),
        (ann, "policies/shop/p", 201),
    ):
        response = await api.client.put(f"/api/{path}", json=body, auth=auth)
        assert response.status_code == status, path


async def test_wrong_definitions_are_told_one_by_one_and_nothing_is_imported(api: Api) -> None:
    document = {
        "vhosts": [{"name": "made"}],
        "queues": [{"name": "q", "vhost": "nowhere"}, {"vhost": "/"}],
    }
    response = await api.client.post("/api/definitions", json=document)
    assert response.status_code == 400
    assert "queues" in response.json()["reason"]
    assert [each["name"] for each in await shown(api, "/api/vhosts")] == ["/"]


async def test_what_an_import_leaves_out_is_in_the_log(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"x-queue-type": "stream"}
    document = {"queues": [{"name": "s", "vhost": "/", "arguments": arguments}]}
    with caplog.at_level(logging.WARNING, "broker_client.server"):
        response = await api.client.post("/api/definitions", json=document)
    assert response.status_code == 204
    assert "queue 's' in vhost '/': type stream is not supported, left out" in caplog.text


async def test_rates_follow_the_counters(api: Api) -> None:
    await declare(api)
    await api.management.rates.look()
    for n in range(10):
        await publish(api, payload=str(n))
    await api.management.rates.look()
    stats = (await shown(api, "/api/queues/%2F/q"))["message_stats"]
    assert stats["publish"] == 10
    assert stats["publish_details"]["rate"] > 0
    assert (await shown(api, "/api/overview"))["message_stats"]["publish"] == 10


# --------------------------------------------------------------------------- metrics, probes


async def test_metrics_hold_to_the_format(api: Api) -> None:
    await declare(api, 'odd"name%5C')
    await publish(api, 'odd"name\\')
    text = ""
    for path in ("/metrics", "/metrics/per-object"):
        text = (await api.client.get(path)).text
        checked = await asyncio.to_thread(
            subprocess.run,
            ["promtool", "check", "metrics"],
            input=text.encode(),
            capture_output=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
    assert 'rabbitmq_queue_messages_ready{vhost="/",queue="odd\\"name\\\\"} 1' in text
    assert "\nrabbitmq_queue_messages_ready 1\n" in (await api.client.get("/metrics")).text


async def test_metrics_with_names_need_a_login_and_those_without_need_none(api: Api) -> None:
    await declare(api, "secret-name")
    async with httpx.AsyncClient(base_url=api.url, timeout=60) as anybody:
        aggregated = await anybody.get("/metrics")
        assert aggregated.status_code == 200
        assert "secret-name" not in aggregated.text
        for path in ("/metrics/per-object", "/metrics/detailed"):
            assert (await anybody.get(path)).status_code == 401
            ann = httpx.BasicAuth("ann", "ann")
            api.login("ann", "management")
            assert (await anybody.get(path, auth=ann)).status_code == 401
            bob = api.login("bob", "monitoring")
            assert "secret-name" in (await anybody.get(path, auth=bob)).text


async def test_detailed_metrics_are_of_the_families_asked_for(api: Api) -> None:
    await declare(api)
    path = "/metrics/detailed?family=queue_consumer_count"
    lines = (await api.client.get(path)).text.splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'rabbitmq_queue_consumers{vhost="/",queue="q"} 0'
    ]


async def test_probes_need_no_login_and_tell_a_node_that_is_closed(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.url, timeout=60) as anybody:
        for path in ("/health/live", "/health/ready"):
            assert (await anybody.get(path)).status_code == 200
        await api.node.close()
        assert (await anybody.get("/health/live")).status_code == 200
        assert (await anybody.get("/health/ready")).status_code == 503
    response = await api.client.put("/api/queues/%2F/q", json={})
    assert response.status_code == 503


async def test_alarm_fails_the_check(api: Api) -> None:
    api.node.set_alarm("disk", True)
    response = await api.client.get("/api/health/checks/alarms")
    assert response.status_code == 503
    assert response.json()["status"] == "failed"
    assert "disk" in response.json()["reason"]
    api.node.set_alarm("disk", False)
    assert (await api.client.get("/api/health/checks/alarms")).status_code == 200


# --------------------------------------------------------------------------- OpenAPI


async def test_description_is_of_the_paths_there_are(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.url, timeout=60) as anybody:
        document = (await anybody.get("/api/openapi.json")).json()
    described = {(method.upper(), path) for path, of in document["paths"].items() for method in of}
    assert described == {(each.method, each.path) for each in OPERATIONS}
    ids = [of["operationId"] for path in document["paths"].values() for of in path.values()]
    assert len(ids) == len(set(ids))


async def test_parameters_of_lists_are_described_for_lists_only(api: Api) -> None:
    paths = (await shown(api, "/api/openapi.json"))["paths"]
    for path, described in paths.items():
        parameters = described.get("get", {}).get("parameters", [])
        query = {each["name"] for each in parameters if each["in"] == "query"}
        if query and "{" not in path:
            answer = await shown(api, path, page=1)
            assert (("page" in query), "columns" in query) == ("page_count" in answer, True), path


async def test_every_described_operation_is_there(api: Api) -> None:
    await declare(api)
    fill = {"vhost": "%2F", "name": "q", "user": "guest", "port": "1", "protocol": "amqp"}
    for operation in OPERATIONS:
        path = operation.path
        for part in (
            "vhost",
            "name",
            "user",
            "port",
            "protocol",
            "node",
            "source",
            "target",
            "props",
        ):
            path = path.replace(f"{{{part}}}", fill.get(part, "x"))
        # Without a login: only that it redirects.
        async with httpx.AsyncClient(base_url=api.url, timeout=60) as anybody:
            response = await anybody.request(operation.method, path)
        assert response.status_code == 401, (operation.method, path)


# --------------------------------------------------------------------------- attacks


async def raw(api: Api, request: bytes) -> bytes:
    """The answer of the socket to bytes that no HTTP library would send."""
    port = int(api.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(65536), 60)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/api/../../../etc/passwd",
        "/api/%2e%2e/%2e%2e/etc/passwd",
        "/api/queues/%2F/..%2f..%2f..%2fetc%2fpasswd",
        "/static/../../etc/passwd",
        "/api/queues/%2F/%00",
        "//etc/passwd",
        "/api/queues/%ff/x",
    ],
)
async def test_path_that_climbs_finds_nothing(api: Api, path: str) -> None:
    login = b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
    answer = await raw(
        api,
        b"GET "
        + path.encode()
        + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        + login
        + b"\r\n",
    )
    assert answer.split()[1] in (b"404", b"400")
    assert b"root:" not in answer


async def test_body_that_is_too_long_is_refused_before_it_is_read(api: Api) -> None:
    head = (
        b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        b"Content-Length: " + str(MAX_BODY_BYTES + 1).encode() + b"\r\n\r\n"
    )
    assert (await raw(api, head)).split()[1] == b"413"
    assert "q" not in api.node.engine.state.vhosts["/"].queues


async def test_endless_body_is_cut(api: Api) -> None:
    async def endless() -> Any:
        for _ in range(2 * MAX_BODY_BYTES // 100_000):
            yield b" " * 100_000

    try:
        response = await api.client.put("/api/queues/%2F/q", content=endless())
    except httpx.WriteError:
        return  # the socket was closed while we were sending
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "permissions/%2F/guest", r'{"configure": "\ud800", "write": "", "read": ""}'),
        ("PUT", "policies/%2F/p", r'{"pattern": "\ud800", "definition": {"max-length": 1}}'),
        (
            "PUT",
            "policies/%2F/p",
            f'{{"pattern": "", "definition": {{"max-length": 1}}, "priority": {1 << 64}}}',
        ),
        ("PUT", "policies/%2F/p", '{"pattern": "", "definition": {"max-age": NaN}}'),
        (
            "PUT",
            "policies/%2F/p",
            f'{{"pattern": "", "definition": {{"max-length": 1}}, "priority": "{"9" * 5000}"}}',
        ),
        ("PUT", "vhost-limits/%2F/max-queues", '{"value": "--5"}'),
        ("PUT", "queues/%2F/new", r'{"arguments": {"x-a": "\ud800"}}'),
        ("PUT", "queues/%2F/new", f'{{"arguments": {{"x-a": {1 << 64}}}}}'),
        ("PUT", "queues/%2F/new", '{"arguments": {"x-a": -Infinity}}'),
        ("PUT", "queues/%2F/new", f'{{"arguments": {{"{"a" * 256}": 1}}}}'),
        ("PUT", "exchanges/%2F/new", r'{"type": "\ud800"}'),
        ("PUT", "exchanges/%2F/new", f'{{"arguments": {{"x-a": {1 << 64}}}}}'),
        ("POST", "bindings/%2F/e/amq.topic/q/q", f'{{"arguments": {{"x-a": {1 << 64}}}}}'),
        (
            "POST",
            "exchanges/%2F/amq.fanout/publish",
            f'{{"routing_key": "{"k" * 256}", "payload": ""}}',
        ),
        ("POST", "definitions", r'{"vhosts": [{"name": "\ud800"}]}'),
        ("GET", f"queues/%2F/q/deferred?most={'9' * 5000}", ""),
        ("GET", f"queues?page={'9' * 5000}", ""),
    ],
)
async def test_what_neither_amqp_nor_a_file_can_carry_is_400(
    api: Api, method: str, path: str, body: str
) -> None:
    await declare(api)
    before = await shown(api, "/api/definitions")
    response = await api.client.request(method, f"/api/{path}", content=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "bad_request"
    assert await shown(api, "/api/definitions") == before


async def test_deeply_nested_body_is_refused(api: Api) -> None:
    body = b'{"arguments": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    response = await api.client.put("/api/queues/%2F/q", content=body)
    assert response.status_code == 400
    assert (await api.client.get("/api/whoami")).status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [("", 401), ("Basic " + "A" * 10_000, 400), ("Basic /w==", 400), ("Basic Og==", 401)],
)
async def test_broken_login_is_refused(api: Api, header: str, status: int) -> None:
    async with httpx.AsyncClient(base_url=api.url, timeout=60) as anybody:
        response = await anybody.get("/api/whoami", headers={"Authorization": header})
    assert response.status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_page_of_another_site_changes_nothing(api: Api, headers: dict[str, str]) -> None:
    await declare(api)
    await publish(api)
    # As a form would send it, with the login that the browser has stored.
    headers = {**headers, "Content-Type": "text/plain"}
    for method, path in (
        ("POST", "/api/queues/%2F/q/purge"),
        ("PUT", "/api/queues/%2F/other"),
        ("DELETE", "/api/queues/%2F/q"),
    ):
        response = await api.client.request(method, path, headers=headers, content=b"{}")
        assert response.status_code == 403
    listed = await shown(api, "/api/queues", columns="name,messages")
    assert listed == [{"name": "q", "messages": 1}]


async def test_page_of_our_own_may_change_something(api: Api) -> None:
    headers = {"Origin": api.url, "Sec-Fetch-Site": "same-origin"}
    response = await api.client.put("/api/queues/%2F/q", json={}, headers=headers)
    assert response.status_code == 201


async def test_long_list_leaves_turns_to_others(api: Api) -> None:
    with RequestChannel(api.node, "guest", "/") as channel:
        for n in range(1_000):
            api.node.commands.declare_queue(channel.id, f"queue-{n}", durable=True)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await shown(api, "/api/whoami")
    counting = asyncio.create_task(count())
    short: list[int] = []
    for _ in range(5):  # turns are counted, so a busy machine does not matter
        turns = 0
        await shown(api, "/api/whoami")
        short.append(turns)
    turns = 0
    listed = await shown(api, "/api/queues")
    counting.cancel()
    assert [each["name"] for each in listed] == sorted(f"queue-{n}" for n in range(1_000))
    assert turns > min(short) + 20  # at least one for fifty items of a list


async def test_address_that_guesses_passwords_is_not_listened_to_for_a_while(api: Api) -> None:
    config, clock = ServerConfig(), ManualClock(0.0)
    api.management.admission = Admission(config, clock.now)
    wrong = httpx.BasicAuth("guest", "wrong")
    for _ in range(config.max_login_failures):
        assert (await api.client.get("/api/whoami", auth=wrong)).status_code == 401
    assert (await api.client.get("/api/whoami")).status_code == 429
    assert (await api.client.get("/metrics/per-object")).status_code == 429
    assert (await api.client.get("/health/live")).status_code == 200
    clock.advance(1.5)
    assert (await api.client.get("/api/whoami")).status_code == 200


async def test_pattern_of_exponential_time_does_not_hold_the_node(api: Api) -> None:
    await declare(api, "a" * 200 + "!")
    began = time.monotonic()
    query = {"page": "1", "name": "^(a|a)*$", "use_regex": "true"}
    response = await api.client.get("/api/queues", params=query)
    assert response.status_code == 200
    assert time.monotonic() - began < 60  # without a limit it would take years


async def test_octet_0_in_a_name_does_not_end_the_metrics(api: Api) -> None:
    assert (await api.client.put("/api/queues/%2F/nul%00%0D%0Aq", json={})).status_code == 201
    text = (await api.client.get("/metrics/per-object")).text
    assert "\0" not in text
    assert 'rabbitmq_queue_messages_ready{vhost="/",queue="nul\ufffd\r\\nq"} 0\n' in text


async def test_script_in_names_and_bodies_stays_text(api: Api) -> None:
    name = "<script>alert(1)</script>"
    path = "/api/queues/%2F/" + name.replace("<", "%3C").replace(">", "%3E").replace("/", "%2F")
    assert (await api.client.put(path, json={})).status_code == 201
    response = await api.client.get(path)
    assert response.headers["content-type"].startswith("application/json")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("203.0.113.9", False),
        ("::ffff:203.0.113.9", False),
        ("not an address", False),
    ],
)
async def test_guest_logs_in_from_this_machine_only(api: Api, host: str, allowed: bool) -> None:
    headers = [(b"authorization", b"Basic Z3Vlc3Q6Z3Vlc3Q=")]
    request = Request({"type": "http", "headers": headers, "client": (host, 1)})
    if allowed:
        assert authenticated(request, api.node.access).name == "guest"
        return
    with pytest.raises(Refusal, match="localhost"):
        authenticated(request, api.node.access)


async def test_guest_of_another_machine_is_refused_behind_a_proxy_on_this_one(api: Api) -> None:
    response = await api.client.get("/api/whoami", headers={"X-Forwarded-For": "203.0.113.9"})
    assert response.status_code == 401


async def test_what_fails_for_one_request_is_logged_and_told_without_details(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("details of the inside")

    monkeypatch.setattr(api.management, "node_object", broken)
    with caplog.at_level(logging.ERROR, "broker_client.server"):
        response = await api.client.get("/api/nodes")
    assert response.status_code == 500
    assert "inside" not in response.text
    assert "details of the inside" in caplog.text
    assert (await api.client.get("/api/whoami")).status_code == 200


async def test_failed_store_is_reported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise StoreError("/x/broker.db", "the disk is gone")

    monkeypatch.setattr(api.node, "open_connection", failing)
    response = await api.client.put("/api/queues/%2F/q", json={})
    assert response.status_code == 503
    assert "the disk is gone" in json.loads(response.text)["reason"]


async def test_no_password_or_hash_is_shown_to_those_without_the_right(api: Api) -> None:
    hashed = api.node.access.users.user("guest").password_hash
    auth = api.login("ann", "management", "policymaker", "monitoring")
    for operation in OPERATIONS:
        if operation.method == "GET":
            path = operation.path.replace("{vhost}", "%2F").replace("{user}", "guest")
            response = await api.client.get(path.replace("{", "").replace("}", ""), auth=auth)
            assert hashed not in response.text, path
