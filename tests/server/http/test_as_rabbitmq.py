"""One suite on our management API and RabbitMQ's."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.server.http.conftest import Managed

NAMES = ["plain", "with/slash", "with space", "ünïcode", "per%cent", "a+b", "dot.ted", "q?x#y"]


def encoded(name: str) -> str:
    return quote(name, safe="")


async def declare(managed: Managed, name: str = "q", **body: Any) -> None:
    response = await managed.client.put(managed.path("queues/{v}/") + encoded(name), json=body)
    assert response.status_code == 201, response.text


async def publish(managed: Managed, key: str, payload: str = "hello", **body: Any) -> bool:
    given = {"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string"}
    path = managed.path("exchanges/{v}/amq.default/publish")
    response = await managed.client.post(path, json={**given, **body})
    assert response.status_code == 200, response.text
    return bool(response.json()["routed"])


async def take(managed: Managed, name: str = "q", **body: Any) -> list[dict[str, Any]]:
    given = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
    path = managed.path("queues/{v}/") + encoded(name) + "/get"
    response = await managed.client.post(path, json={**given, **body})
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()
    return found


# --------------------------------------------------------------------------- statuses


@pytest.mark.parametrize("name", NAMES)
async def test_queue_of_any_name_is_declared_shown_and_deleted(managed: Managed, name: str) -> None:
    path = managed.path("queues/{v}/") + encoded(name)
    assert (await managed.client.put(path, json={})).status_code == 201
    assert (await managed.client.put(path, json={})).status_code == 204
    shown = await managed.client.get(path)
    assert shown.status_code == 200
    assert (shown.json()["name"], shown.json()["vhost"]) == (name, managed.vhost)
    assert (await managed.client.delete(path)).status_code == 204
    gone = await managed.client.get(path)
    assert gone.status_code == 404
    assert gone.json() == {"error": "Object Not Found", "reason": "Not Found"}


async def test_redeclaration_that_differs_is_400_with_the_reason(managed: Managed) -> None:
    await declare(managed, durable=True)
    response = await managed.client.put(managed.path("queues/{v}/q"), json={"durable": False})
    assert response.status_code == 400
    assert response.json()["error"] == "bad_request"
    assert "inequivalent arg 'durable' for queue 'q'" in response.json()["reason"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "queues/{v}/missing"),
        ("DELETE", "queues/{v}/missing"),
        ("DELETE", "queues/{v}/missing/contents"),
        ("GET", "exchanges/{v}/missing"),
        ("DELETE", "exchanges/{v}/missing"),
        ("GET", "vhosts/missing"),
        ("DELETE", "vhosts/missing"),
        ("GET", "users/missing"),
        ("DELETE", "users/missing"),
        ("GET", "permissions/{v}/missing"),
        ("GET", "connections/missing"),
        ("DELETE", "connections/missing"),
        ("GET", "channels/missing"),
        ("GET", "queues/missing"),
        ("GET", "exchanges/missing"),
        ("GET", "no-such-path"),
    ],
)
async def test_what_is_missing_is_404(managed: Managed, method: str, path: str) -> None:
    response = await managed.client.request(method, managed.path(path))
    assert response.status_code == 404


async def test_body_that_is_no_json_object_is_400(managed: Managed) -> None:
    for body in (b"{", b"[]", b'"x"'):
        path = managed.path("queues/{v}/q")
        response = await managed.client.put(path, content=body)
        assert response.status_code == 400, body
        assert response.json()["error"] in ("bad_request", "not_json")


async def test_method_that_a_path_has_not_got_is_405(managed: Managed) -> None:
    assert (await managed.client.delete(managed.path("overview"))).status_code == 405


@pytest.mark.parametrize(
    "auth", [None, httpx.BasicAuth("guest", "wrong"), httpx.BasicAuth("nobody", "guest")]
)
async def test_wrong_login_is_401_and_asks_for_basic(
    managed: Managed, auth: httpx.BasicAuth | None
) -> None:
    url = str(managed.client.base_url) + "/api/whoami"
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url, auth=auth)
    assert response.status_code == 401
    asks = response.headers.get("www-authenticate", "").startswith("Basic")
    assert asks == (auth is None or not managed.is_rabbitmq_4)  # RabbitMQ 4: only without a login
    if not managed.is_rabbitmq or auth is not None:  # RabbitMQ: no body where nobody logs in
        assert response.json()["error"] in ("not_authorized", "not_authorised")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Basic", 400),
        ("Basic !!!", 400),
        ("Basic Zm9v", 400),  # foo
        ("Basic Z3Vlc3Q6Z3Vlc3Q=x", 400),
        ("Nonsense", 400),
        ("Bearer x", 401),
        ("Basic //46eA==", 401),  # not UTF-8
        ("Basic Og==", 401),  # an empty name
        ("basic Z3Vlc3Q6Z3Vlc3Q=", 200),
    ],
)
async def test_header_that_cannot_be_a_login_is_400(
    managed: Managed, header: str, status: int
) -> None:
    url = str(managed.client.base_url) + "/api/whoami"
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.get(url, headers={"Authorization": header})
    assert response.status_code == status


async def test_whoami_tells_name_and_tags(managed: Managed) -> None:
    shown = (await managed.client.get(managed.path("whoami"))).json()
    assert (shown["name"], shown["tags"]) == ("guest", ["administrator"])


# --------------------------------------------------------------------------- exchanges, bindings


async def test_exchange_is_declared_shown_and_deleted(managed: Managed) -> None:
    path = managed.path("exchanges/{v}/x")
    body = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert (await managed.client.put(path, json=body)).status_code == 201
    assert (await managed.client.put(path, json=body)).status_code == 204
    shown = (await managed.client.get(path)).json()
    for key, value in body.items():
        assert shown[key] == value
    assert (await managed.client.put(path, json={"type": "fanout"})).status_code == 400
    assert (await managed.client.delete(path)).status_code == 204


async def test_reserved_names_are_refused(managed: Managed) -> None:
    path = managed.path("exchanges/{v}/amq.own")
    response = await managed.client.put(path, json={"type": "topic"})
    assert response.status_code in (400, 401)
    response = await managed.client.delete(managed.path("exchanges/{v}/amq.topic"))
    assert response.status_code in (400, 401)


@pytest.mark.parametrize(
    ("key", "arguments"),
    [("a.b", {}), ("", {}), ("a/b c~d", {}), ("k", {"x-match": "any", "n": 1})],
)
async def test_binding_is_made_found_by_its_properties_key_and_deleted(
    managed: Managed, key: str, arguments: dict[str, Any]
) -> None:
    await declare(managed)
    path = managed.path("bindings/{v}/e/amq.headers/q/q")
    body = {"routing_key": key, "arguments": arguments}
    made = await managed.client.post(path, json=body)
    assert made.status_code == 201
    assert made.headers["location"]
    (binding,) = (await managed.client.get(path)).json()
    assert (binding["routing_key"], binding["arguments"]) == (key, arguments)
    assert (binding["source"], binding["destination"]) == ("amq.headers", "q")
    if not key and not arguments:
        assert binding["properties_key"] == "~"
    one = f"{path}/{encoded(binding['properties_key'])}"
    assert (await managed.client.get(one)).json()["routing_key"] == key
    assert (await managed.client.delete(one)).status_code == 204
    assert (await managed.client.get(path)).json() == []
    assert (await managed.client.delete(one)).status_code == 404


async def test_binding_of_an_exchange_to_an_exchange(managed: Managed) -> None:
    path = managed.path("bindings/{v}/e/amq.topic/e/amq.fanout")
    response = await managed.client.post(path, json={"routing_key": "#"})
    assert response.status_code == 201
    listed = (
        await managed.client.get(managed.path("exchanges/{v}/amq.topic/bindings/source"))
    ).json()
    assert [each["destination_type"] for each in listed] == ["exchange"]
    listed = (
        await managed.client.get(managed.path("exchanges/{v}/amq.fanout/bindings/destination"))
    ).json()
    assert [each["source"] for each in listed] == ["amq.topic"]


async def test_bindings_between_what_is_missing_are_none(managed: Managed) -> None:
    response = await managed.client.get(managed.path("bindings/{v}/e/missing/q/missing"))
    assert (response.status_code, response.json()) == (200, [])


async def test_bindings_of_the_default_exchange_are_listed(managed: Managed) -> None:
    await declare(managed)
    listed = (await managed.client.get(managed.path("queues/{v}/q/bindings"))).json()
    assert [(each["source"], each["routing_key"]) for each in listed] == [("", "q")]


# --------------------------------------------------------------------------- messages


async def test_publish_says_whether_it_was_routed(managed: Managed) -> None:
    await declare(managed)
    assert await publish(managed, "q")
    assert not await publish(managed, "nowhere")


async def test_message_keeps_its_properties(managed: Managed) -> None:
    await declare(managed)
    properties = {
        "content_type": "application/json",
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "headers": {"n": 1, "t": "x", "deep": {"list": [1, "two"]}},
    }
    await publish(managed, "q", '{"a": 1}', properties=properties)
    (message,) = await take(managed)
    assert message["properties"] == properties
    assert message["payload"] == '{"a": 1}'
    assert message["payload_encoding"] == "string"
    assert message["payload_bytes"] == 8
    assert (message["exchange"], message["routing_key"]) == ("", "q")
    assert message["redelivered"] is False
    assert message["message_count"] == 0


async def test_bytes_travel_as_base64(managed: Managed) -> None:
    await declare(managed)
    await publish(managed, "q", "/wD+", payload_encoding="base64")
    await publish(managed, "q", "text")
    first, second = await take(managed, ackmode="ack_requeue_true")
    assert (first["payload"], first["payload_encoding"]) == ("/wD+", "base64")
    assert first["payload_bytes"] == 3
    assert (second["payload"], second["payload_encoding"]) == ("text", "string")
    _, second = await take(managed, encoding="base64")
    assert (second["payload"], second["payload_encoding"]) == ("dGV4dA==", "base64")


async def test_truncated_payload_tells_its_whole_length(managed: Managed) -> None:
    await declare(managed)
    await publish(managed, "q", "0123456789")
    (message,) = await take(managed, truncate=4)
    assert (message["payload"], message["payload_bytes"]) == ("0123", 10)


@pytest.mark.parametrize(
    ("ackmode", "left"),
    [
        ("ack_requeue_true", 2),
        ("ack_requeue_false", 0),
        ("reject_requeue_true", 2),
        ("reject_requeue_false", 0),
    ],
)
async def test_ackmode_decides_whether_messages_stay(
    managed: Managed, ackmode: str, left: int
) -> None:
    await declare(managed)
    for payload in ("one", "two"):
        await publish(managed, "q", payload)
    got = await take(managed, ackmode=ackmode)
    assert [(each["payload"], each["message_count"]) for each in got] == [("one", 1), ("two", 0)]
    again = await take(managed)
    assert [each["payload"] for each in again] == ["one", "two"][:left]
    assert all(each["redelivered"] for each in again)


async def test_rejected_without_requeue_is_dead_lettered(managed: Managed) -> None:
    await declare(managed, "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await declare(managed, "q", arguments=arguments)
    await publish(managed, "q")
    await take(managed, ackmode="reject_requeue_false")
    (message,) = await take(managed, "dead")
    assert message["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


async def test_purge_and_conditional_delete(managed: Managed) -> None:
    await declare(managed)
    await publish(managed, "q")
    path = managed.path("queues/{v}/q")
    assert (await managed.client.delete(path + "?if-empty=true")).status_code == 400
    assert (await managed.client.delete(path + "/contents")).status_code == 204
    assert (await managed.client.delete(path + "?if-empty=true")).status_code == 204


@pytest.mark.parametrize(
    "body",
    [
        {"routing_key": "q", "properties": {}, "payload": "?", "payload_encoding": "base64"},
        {"routing_key": "q", "properties": {}, "payload": "x", "payload_encoding": "other"},
        {"properties": {}, "payload": "x", "payload_encoding": "string"},
    ],
)
async def test_publish_that_cannot_be_is_400(managed: Managed, body: dict[str, Any]) -> None:
    await declare(managed)
    path = managed.path("exchanges/{v}/amq.default/publish")
    assert (await managed.client.post(path, json=body)).status_code == 400
    assert await take(managed) == []


# --------------------------------------------------------------------------- users


async def test_user_and_permissions_come_and_go(managed: Managed) -> None:
    user = f"user-{managed.vhost}"
    path = managed.path("users/") + encoded(user)
    body = {"password": "secret", "tags": "management,policymaker"}
    assert (await managed.client.put(path, json=body)).status_code == 201
    assert (await managed.client.put(path, json=body)).status_code == 204
    shown = (await managed.client.get(path)).json()
    assert shown["tags"] == ["management", "policymaker"]
    assert shown["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    permissions = managed.path("permissions/{v}/") + encoded(user)
    rights = {"configure": "^c", "write": "", "read": ".*"}
    assert (await managed.client.get(permissions)).status_code == 404
    assert (await managed.client.put(permissions, json=rights)).status_code == 201
    assert (await managed.client.put(permissions, json=rights)).status_code == 204
    shown = (await managed.client.get(permissions)).json()
    assert shown == {"user": user, "vhost": managed.vhost, **rights}
    topics = managed.path("topic-permissions/{v}/") + encoded(user)
    limits = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert (await managed.client.put(topics, json=limits)).status_code == 201
    (shown,) = (await managed.client.get(topics)).json()
    assert shown == {"user": user, "vhost": managed.vhost, **limits}
    assert (await managed.client.delete(topics)).status_code == 204
    assert (await managed.client.delete(permissions)).status_code == 204
    assert (await managed.client.delete(path)).status_code == 204
    assert (await managed.client.get(path)).status_code == 404


async def test_imported_hash_logs_in(managed: Managed) -> None:
    user = f"imported-{managed.vhost}"
    path = managed.path("users/") + encoded(user)
    body = {
        "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",  # of test12
        "tags": ["management"],
    }
    assert (await managed.client.put(path, json=body)).status_code == 201
    try:
        whoami = managed.path("whoami")
        right = await managed.client.get(whoami, auth=httpx.BasicAuth(user, "test12"))
        wrong = await managed.client.get(whoami, auth=httpx.BasicAuth(user, "test13"))
        assert (right.status_code, wrong.status_code) == (200, 401)
    finally:
        await managed.client.delete(path)


@pytest.mark.parametrize(
    "rights", [{"configure": "(", "write": "", "read": ""}, {"configure": "", "write": ""}]
)
async def test_permissions_that_cannot_be_are_400(managed: Managed, rights: dict[str, str]) -> None:
    path = managed.path("permissions/{v}/guest")
    assert (await managed.client.put(path, json=rights)).status_code == 400


async def test_user_without_a_tag_may_not_use_the_api(managed: Managed) -> None:
    user = f"plain-{managed.vhost}"
    path = managed.path("users/") + encoded(user)
    await managed.client.put(path, json={"password": "secret", "tags": ""})
    try:
        for path_of in ("whoami", "overview", "queues/{v}"):
            response = await managed.client.get(
                managed.path(path_of), auth=httpx.BasicAuth(user, "secret")
            )
            assert response.status_code == 401
    finally:
        await managed.client.delete(path)


MANAGEMENT_ONLY = [
    ("GET", "whoami", 200),
    ("GET", "overview", 200),
    ("GET", "queues/{v}", 200),
    ("PUT", "queues/{v}/other", 401),
    ("GET", "nodes", 401),
    ("GET", "users", 401),
    ("GET", "permissions", 401),
    ("PUT", "vhosts/another", 401),
    ("DELETE", "vhosts/{v}", 401),
    ("PUT", "permissions/{v}/guest", 401),
    ("GET", "definitions", 401),
    ("POST", "definitions", 401),
    ("GET", "queues/%2F", 404),
    ("PUT", "queues/%2F/q", 404),
    ("GET", "queues/%2F/q", 404),
    ("GET", "exchanges/%2F", 404),
    ("GET", "bindings/%2F", 404),
    ("GET", "policies/%2F", 404),
    ("GET", "vhosts/%2F/connections", 404),
    ("GET", "queues/no-vhost", 404),
]


async def test_tag_management_sees_its_vhosts_and_administers_nothing(managed: Managed) -> None:
    user = f"limited-{managed.vhost}"
    path = managed.path("users/") + encoded(user)
    await managed.client.put(path, json={"password": "secret", "tags": "management"})
    rights = {"configure": "^own", "write": "^own", "read": "^own"}
    await managed.client.put(managed.path("permissions/{v}/") + encoded(user), json=rights)
    auth = httpx.BasicAuth(user, "secret")
    try:
        for method, path_of, expected in MANAGEMENT_ONLY:
            status = expected
            if managed.is_rabbitmq and not managed.is_rabbitmq_4 and "%2F" in path_of:
                status = 401  # RabbitMQ 3: tells a vhost that the user may not see from none
            response = await managed.client.request(
                method,
                managed.path(path_of),
                auth=auth,
                json=None if method == "GET" else {},
                headers={"Connection": "close"},  # RabbitMQ: refuses before it reads the body
            )
            assert response.status_code == status, (method, path_of, response.text)
        own = await managed.client.put(managed.path("queues/{v}/own"), auth=auth, json={})
        assert own.status_code == 201
        vhosts = await managed.client.get(managed.path("vhosts"), auth=auth)
        assert [each["name"] for each in vhosts.json()] == [managed.vhost]
    finally:
        await managed.client.delete(path)


# --------------------------------------------------------------------------- policies, limits


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
async def test_policy_is_set_shown_replaced_and_deleted(managed: Managed, kind: str) -> None:
    path = managed.path(f"{kind}/{{v}}/short")
    body = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 2}
    assert (await managed.client.put(path, json=body)).status_code == 201
    assert (await managed.client.put(path, json=body)).status_code == 204
    shown = (await managed.client.get(path)).json()
    assert shown == {"vhost": managed.vhost, "name": "short", **body}
    listed = (await managed.client.get(managed.path(f"{kind}/{{v}}"))).json()
    assert [each["name"] for each in listed] == ["short"]
    assert (await managed.client.delete(path)).status_code == 204
    assert (await managed.client.get(path)).status_code == 404
    assert (await managed.client.delete(path)).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"pattern": "^q", "definition": {"max-length": -1}},
        {"pattern": "^q", "definition": {"no-such-key": 1}},
        {"pattern": "(", "definition": {"max-length": 1}},
        {"pattern": "^q", "definition": {}},
        {"pattern": "^q"},
        {"definition": {"max-length": 1}},
        {"pattern": "^q", "definition": {"max-length": 1}, "apply-to": "everything"},
    ],
)
async def test_policy_that_cannot_be_is_400(managed: Managed, body: dict[str, Any]) -> None:
    path = managed.path("policies/{v}/wrong")
    assert (await managed.client.put(path, json=body)).status_code == 400
    assert (await managed.client.get(path)).status_code == 404


async def test_limits_of_a_vhost_are_set_shown_and_taken_away(managed: Managed) -> None:
    path = managed.path("vhost-limits/{v}/max-queues")
    assert (await managed.client.put(path, json={"value": 1})).status_code == 204
    (shown,) = (await managed.client.get(managed.path("vhost-limits/{v}"))).json()
    assert shown == {"vhost": managed.vhost, "value": {"max-queues": 1}}
    await declare(managed)
    refused = await managed.client.put(managed.path("queues/{v}/other"), json={})
    assert refused.status_code == 400
    assert (await managed.client.delete(path)).status_code == 204
    await declare(managed, "other")


# --------------------------------------------------------------------------- parameters


async def test_limits_and_operator_policies_are_parameters(managed: Managed) -> None:
    limits = managed.path("parameters/vhost-limits/{v}/limits")
    assert (await managed.client.get(limits)).status_code == 404
    for most, status in ((5, 201), (6, 204)):
        response = await managed.client.put(limits, json={"value": {"max-queues": most}})
        assert response.status_code == status, response.text
    (shown,) = (await managed.client.get(managed.path("vhost-limits/{v}"))).json()
    assert shown["value"] == {"max-queues": 6}
    value: dict[str, Any] = {"pattern": "^q", "definition": {"max-length": 5}}
    value |= {"priority": 1, "apply-to": "queues"}
    guard = managed.path("parameters/operator_policy/{v}/guard")
    for status in (201, 204):
        assert (await managed.client.put(guard, json={"value": value})).status_code == status
    policy = managed.path("operator-policies/{v}/guard")
    assert (await managed.client.get(policy)).json()["definition"] == {"max-length": 5}
    names = {"vhost": managed.vhost, "component": "operator_policy", "name": "guard"}
    assert (await managed.client.get(guard)).json() == {**names, "value": value}
    names = {"vhost": managed.vhost, "component": "vhost-limits", "name": "limits"}
    assert (await managed.client.get(limits)).json() == {**names, "value": {"max-queues": 6}}
    everywhere = (await managed.client.get(managed.path("parameters"))).json()
    mine = [each for each in everywhere if each["vhost"] == managed.vhost]
    assert sorted(each["name"] for each in mine) == ["guard", "limits"]
    for path, found in (
        ("parameters/vhost-limits/{v}", ["limits"]),
        ("parameters/operator_policy/{v}", ["guard"]),
        ("parameters/shovel/{v}", []),
        ("parameters/shovel", []),
    ):
        response = await managed.client.get(managed.path(path))
        assert [each["name"] for each in response.json()] == found, path
    for path in (limits, guard):
        assert (await managed.client.delete(path)).status_code == 204
        assert (await managed.client.delete(path)).status_code == 404
    assert (await managed.client.get(managed.path("vhost-limits/{v}"))).json() == []


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("shovel/{v}/s", {"value": {}}, 400, "Validation failed\n\ncomponent shovel not found\n"),
        ("federation-upstream/{v}/f", {"value": {"uri": "amqp://"}}, 400, "not found"),
        ("policy/{v}/p", {"value": {}}, 400, "policies may not be set using this method"),
        ("vhost-limits/{v}/limits", {}, 400, "key_missing"),
        ("vhost-limits/{v}/limits", {"value": {"max-bananas": 1}}, 400, "max-bananas"),
        ("vhost-limits/{v}/limits", {"value": {"max-queues": "x"}}, 400, "should be a number"),
        ("vhost-limits/{v}/limits", {"value": 5}, 400, ""),
        ("operator_policy/{v}/p", {"value": {"pattern": "^q"}}, 400, "definition"),
        ("shovel/missing/s", {"value": {}}, 404, ""),
    ],
)
async def test_parameter_that_cannot_be_is_refused(
    managed: Managed, path: str, body: dict[str, Any], status: int, reason: str
) -> None:
    response = await managed.client.put(managed.path(f"parameters/{path}"), json=body)
    assert response.status_code == status
    assert reason in response.json()["reason"]
    assert (await managed.client.get(managed.path("parameters/vhost-limits/{v}"))).json() == []


async def test_global_parameters_of_any_name_are_kept_shown_and_forgotten(
    managed: Managed,
) -> None:
    path = managed.path("global-parameters/") + encoded(f"of {managed.vhost}")
    shown: dict[str, Any] = {}
    for value, status in (({"a": [1, 2.5, None, True, "ü"]}, 201), (None, 204), ("text", 204)):
        assert (await managed.client.put(path, json={"value": value})).status_code == status
        shown = (await managed.client.get(path)).json()
        assert shown == {"name": f"of {managed.vhost}", "value": value}
    assert (await managed.client.put(path, json={})).status_code == 400
    listed = (await managed.client.get(managed.path("global-parameters"))).json()
    assert shown in listed
    document = (await managed.client.get(managed.path("definitions"))).json()
    assert shown in document["global_parameters"]
    assert (await managed.client.delete(path)).status_code == 204
    assert (await managed.client.delete(path)).status_code == 404
    assert (await managed.client.get(path)).status_code == 404
    response = await managed.client.post(
        managed.path("definitions"), json={"global_parameters": [shown]}
    )
    assert response.status_code == 204
    assert (await managed.client.get(path)).json() == shown
    await managed.client.delete(path)


async def test_cluster_name_is_a_global_parameter(managed: Managed) -> None:
    cluster, parameter = managed.path("cluster-name"), "global-parameters/cluster_name"
    before = (await managed.client.get(cluster)).json()["name"]
    try:
        put = await managed.client.put(cluster, json={"name": "rabbit@shop"})
        assert put.status_code == 204
        shown = (await managed.client.get(managed.path(parameter))).json()
        assert shown == {"name": "cluster_name", "value": "rabbit@shop"}
        for path, key in (("cluster-name", "name"), ("overview", "cluster_name")):
            assert (await managed.client.get(managed.path(path))).json()[key] == "rabbit@shop"
    finally:
        await managed.client.delete(managed.path(parameter))
    assert (await managed.client.get(cluster)).json()["name"] == before


@pytest.mark.parametrize(
    ("tag", "allowed"),
    [("management", False), ("monitoring", False), ("policymaker", True), ("administrator", True)],
)
async def test_parameters_are_for_policymakers(managed: Managed, tag: str, allowed: bool) -> None:
    user = managed.path("users/") + encoded(f"of {managed.vhost}")
    await managed.client.put(user, json={"password": "secret", "tags": tag})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    permissions = managed.path("permissions/{v}/") + encoded(f"of {managed.vhost}")
    await managed.client.put(permissions, json=rights)
    auth = httpx.BasicAuth(f"of {managed.vhost}", "secret")
    kept = f"global-parameters/of-{tag}"
    for method, path, status in (
        ("GET", "parameters", 200),
        ("GET", "parameters/vhost-limits/{v}", 200),
        ("PUT", "parameters/shovel/{v}/s", 400),
        ("DELETE", "parameters/shovel/{v}/s", 404),
        ("GET", "global-parameters", 200),
        ("PUT", kept, 201),
        ("DELETE", kept, 204),
    ):
        body: dict[str, Any] | None = {"value": {}} if method == "PUT" else None
        response = await managed.client.request(
            method,
            managed.path(path),
            json=body,
            auth=auth,
            headers={"Connection": "close"},  # RabbitMQ: refuses before it reads the body
        )
        assert response.status_code == (status if allowed else 401), (method, path)
    await managed.client.delete(user)


# --------------------------------------------------------------------------- definitions


async def exported(managed: Managed) -> dict[str, Any]:
    response = await managed.client.get(managed.path("definitions/{v}"))
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


async def test_definitions_of_a_vhost_come_back_after_it_was_deleted(managed: Managed) -> None:
    await declare(managed, arguments={"x-max-length": 7})
    await managed.client.put(managed.path("exchanges/{v}/x"), json={"type": "topic"})
    binding = {"routing_key": "a.#", "arguments": {}}
    await managed.client.post(managed.path("bindings/{v}/e/x/q/q"), json=binding)
    policy = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues"}
    await managed.client.put(managed.path("policies/{v}/p"), json=policy)
    before = await exported(managed)
    assert [each["name"] for each in before["queues"]] == ["q"]
    await managed.client.delete(managed.path("vhosts/{v}"))
    await managed.client.put(managed.path("vhosts/{v}"))
    assert (await exported(managed))["queues"] == []
    response = await managed.client.post(managed.path("definitions/{v}"), json=before)
    assert response.status_code == 204, response.text
    after = await exported(managed)
    for section in ("queues", "exchanges", "bindings", "policies"):
        assert after[section] == before[section]
    shown = (await managed.client.get(managed.path("queues/{v}/q"))).json()
    own = {"x-queue-type": "classic"} if managed.is_rabbitmq_4 else {}  # written into arguments
    assert shown["arguments"] == {"x-max-length": 7, **own}


async def test_definitions_are_taken_as_the_file_of_a_form(managed: Managed) -> None:
    document = {"queues": [{"name": "q", "durable": True, "auto_delete": False, "arguments": {}}]}
    response = await managed.client.post(
        managed.path("definitions/{v}"), files={"file": ("definitions.json", json.dumps(document))}
    )
    assert response.status_code in (204, 303)  # RabbitMQ: redirects the browser
    assert (await managed.client.get(managed.path("queues/{v}/q"))).status_code == 200


async def test_definitions_that_are_no_json_are_400(managed: Managed) -> None:
    response = await managed.client.post(
        managed.path("definitions/{v}"),
        content=b"{",
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 400


# --------------------------------------------------------------------------- vhosts, lists


async def test_vhost_is_added_once_and_its_creator_may_use_it(managed: Managed) -> None:
    path = managed.path("vhosts/{v}")
    assert (await managed.client.put(path)).status_code == 204
    assert (await managed.client.get(path)).json()["name"] == managed.vhost
    await declare(managed)
    listed = (await managed.client.get(managed.path("vhosts/{v}/permissions"))).json()
    assert [each["user"] for each in listed] == ["guest"]


METADATA = {"description": "of the shop", "tags": ["a", "b"], "default_queue_type": "quorum"}


def knows_default_type(managed: Managed) -> bool:
    """RabbitMQ 3.10 ignores the metadata given here."""
    return not managed.is_rabbitmq or managed.is_rabbitmq_4


async def test_metadata_of_a_vhost_is_given_back_and_replaced_as_a_whole(managed: Managed) -> None:
    path = managed.path("vhosts/{v}")
    for given in (METADATA, {**METADATA, "tags": "a, b", "tracing": False}):
        assert (await managed.client.put(path, json=given)).status_code == 204
        shown = (await managed.client.get(path)).json()
        keys = METADATA if knows_default_type(managed) else ("description", "tags")
        for key in keys:
            assert shown[key] == shown["metadata"][key] == METADATA[key]
        assert shown["tracing"] is False
    assert (await managed.client.put(path, json={"tags": ["c"]})).status_code == 204
    shown = (await managed.client.get(path)).json()
    assert (shown["description"], shown["tags"]) == ("", ["c"])
    assert shown["default_queue_type"] in ("classic", "undefined")
    if knows_default_type(managed):
        refused = await managed.client.put(path, json={"default_queue_type": "rubbish"})
        assert refused.status_code == 400
    assert (await managed.client.get(path)).json()["tags"] == ["c"]


async def test_queue_without_a_type_gets_the_default_of_its_vhost(managed: Managed) -> None:
    if not knows_default_type(managed):
        pytest.skip("RabbitMQ 3.10 has no default queue type")
    await managed.client.put(managed.path("vhosts/{v}"), json=METADATA)
    await declare(managed, "plain", durable=True)
    await declare(managed, "own", durable=True, arguments={"x-queue-type": "classic"})
    await declare(managed, "fleeting", durable=True, auto_delete=True)
    await declare(managed, "transient", durable=False)
    types = {}
    for each in (await managed.client.get(managed.path("queues/{v}"))).json():
        types[each["name"]] = each["arguments"]["x-queue-type"]
        assert each["type"] == types[each["name"]]
    assert types == {
        "plain": "quorum",
        "own": "classic",
        "fleeting": "classic",
        "transient": "classic",
    }
    again = [
        ("plain", {"durable": True}, 204),
        ("plain", {"durable": True, "arguments": {"x-queue-type": "quorum"}}, 204),
        ("plain", {"durable": True, "arguments": {"x-queue-type": "classic"}}, 400),
        ("own", {"durable": True}, 400),
        ("transient", {"durable": False}, 204),
    ]
    for name, body, status in again:
        path = managed.path("queues/{v}/") + name
        assert (await managed.client.put(path, json=body)).status_code == status, (name, body)
    await managed.client.put(managed.path("vhosts/{v}"), json={})
    path = managed.path("queues/{v}/plain")
    refused = await managed.client.put(path, json={"durable": True})
    assert refused.status_code == 400
    assert "received 'classic' but current is 'quorum'" in refused.json()["reason"]


async def test_metadata_of_vhosts_is_in_the_definitions(managed: Managed) -> None:
    await managed.client.put(managed.path("vhosts/{v}"), json=METADATA)
    await managed.client.post(
        managed.path("definitions"),
        json={"vhosts": [{"name": managed.vhost, "metadata": {**METADATA, "tags": ["z"]}}]},
    )
    shown = (await managed.client.get(managed.path("vhosts/{v}"))).json()
    assert (shown["description"], shown["tags"]) == ("of the shop", ["z"])
    if knows_default_type(managed):
        document = (await managed.client.get(managed.path("definitions"))).json()
        (vhost,) = [each for each in document["vhosts"] if each["name"] == managed.vhost]
        assert vhost["metadata"] == {**METADATA, "tags": ["z"]}
        assert shown["default_queue_type"] == "quorum"
        assert (await exported(managed))["metadata"] == vhost["metadata"]


async def test_pages_columns_and_sorting(managed: Managed) -> None:
    for name in ("b1", "a1", "c1", "a2"):
        await declare(managed, name)
    path = managed.path("queues/{v}")
    query: dict[str, str | int] = {
        "page": 1,
        "page_size": 2,
        "sort": "name",
        "sort_reverse": "true",
        "columns": "name",
    }
    shown = (await managed.client.get(path, params=query)).json()
    assert shown["items"] == [{"name": "c1"}, {"name": "b1"}]
    counts = ("total_count", "filtered_count", "item_count", "page", "page_count", "page_size")
    assert [shown[each] for each in counts] == [4, 4, 2, 1, 2, 2]
    query = {"page": 1, "page_size": 10, "name": "A", "use_regex": "false", "columns": "name"}
    shown = (await managed.client.get(path, params=query)).json()
    assert {each["name"] for each in shown["items"]} == {"a1", "a2"}
    query = {"page": 1, "page_size": 10, "name": "^a.$", "use_regex": "true", "columns": "name"}
    shown = (await managed.client.get(path, params=query)).json()
    assert shown["filtered_count"] == 2
    for wrong in ("page=9&page_size=2", "page=1&page_size=501", "page=x"):
        assert (await managed.client.get(f"{path}?{wrong}")).status_code == 400, wrong


async def test_overview_has_what_dashboards_read(managed: Managed) -> None:
    shown = (await managed.client.get(managed.path("overview"))).json()
    assert shown["object_totals"].keys() >= {
        "connections",
        "channels",
        "exchanges",
        "queues",
        "consumers",
    }
    assert isinstance(shown["node"], str)
    assert shown["rabbitmq_version"][0].isdigit()
    assert {each["name"] for each in shown["exchange_types"]} >= {"direct", "fanout", "topic"}
    assert "amqp" in {each["protocol"] for each in shown["listeners"]}


async def test_health_checks_say_ok(managed: Managed) -> None:
    for path in (
        "aliveness-test/{v}",
        "health/checks/alarms",
        "health/checks/local-alarms",
        "health/checks/virtual-hosts",
        "health/checks/node-is-quorum-critical",
        "health/checks/protocol-listener/amqp",
    ):
        response = await managed.client.get(managed.path(path))
        assert (response.status_code, response.json()["status"]) == (200, "ok"), path
    response = await managed.client.get(managed.path("health/checks/port-listener/1"))
    assert response.status_code == 503
    assert response.json()["status"] == "failed"
