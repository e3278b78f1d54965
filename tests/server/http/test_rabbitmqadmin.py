"""The `rabbitmqadmin` of RabbitMQ 3.10 works on our management API."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from broker_client.core.access import Permission
from tests.server.http.conftest import Api

ADMIN = shutil.which("rabbitmqadmin")
pytestmark = [pytest.mark.rabbitmq, pytest.mark.skipif(ADMIN is None, reason="no rabbitmqadmin")]


async def admin(api: Api, *arguments: str, vhost: str | None = "/", status: int = 0) -> str:
    of_vhost = () if vhost is None else ("-V", vhost)
    port = api.url.rpartition(":")[2]
    assert ADMIN is not None
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        ADMIN,
        *("-H", "127.0.0.1", "-P", port, *of_vhost, "-f", "raw_json"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == status, output.decode()
    return output.decode()


async def listed(api: Api, *arguments: str, vhost: str = "/") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await admin(api, "list", *arguments, vhost=vhost))
    return found


async def test_declare_bind_publish_get_purge_delete(api: Api) -> None:
    await admin(api, "declare", "exchange", "name=x", "type=topic")
    await admin(api, "declare", "queue", "name=q", 'arguments={"x-max-length": 10}')
    await admin(api, "declare", "binding", "source=x", "destination=q", "routing_key=a.#")
    exchanges = {each["name"]: each for each in await listed(api, "exchanges", "name", "type")}
    assert exchanges["x"] == {"name": "x", "type": "topic"}
    assert "published" in await admin(
        api, "publish", "exchange=x", "routing_key=a.b", "payload=hello"
    )
    assert "NOT routed" in await admin(
        api, "publish", "exchange=x", "routing_key=nowhere", "payload=hello"
    )
    assert await listed(api, "queues", "name", "messages") == [{"name": "q", "messages": 1}]
    for ackmode in ("ack_requeue_true", "ack_requeue_false"):
        (message,) = json.loads(await admin(api, "get", "queue=q", f"ackmode={ackmode}"))
        assert (message["payload"], message["routing_key"]) == ("hello", "a.b")
    assert json.loads(await admin(api, "get", "queue=q")) == []
    await admin(api, "publish", "routing_key=q", "payload=more")
    await admin(api, "purge", "queue", "name=q")
    assert await listed(api, "queues", "messages") == [{"messages": 0}]
    bindings = await listed(api, "bindings", "source", "properties_key")
    (key,) = [each["properties_key"] for each in bindings if each["source"] == "x"]
    await admin(
        api,
        *("delete", "binding", "source=x", "destination_type=queue", "destination=q"),
        f"properties_key={key}",
    )
    assert [each["source"] for each in await listed(api, "bindings")] == [""]
    await admin(api, "delete", "queue", "name=q")
    await admin(api, "delete", "exchange", "name=x")
    assert await listed(api, "queues") == []


async def test_what_is_refused_is_reported(api: Api) -> None:
    await admin(api, "declare", "queue", "name=q", "durable=false")
    told = await admin(api, "declare", "queue", "name=q", "durable=true", status=1)
    assert "inequivalent arg 'durable'" in told
    assert "Not found" in await admin(api, "delete", "queue", "name=missing", status=1)
    told = await admin(api, "-u", "guest", "-p", "wrong", "list", "queues", status=1)
    assert "Access refused" in told


async def test_vhosts_users_and_permissions(api: Api) -> None:
    await admin(api, "declare", "vhost", "name=a/b")
    assert [each["name"] for each in await listed(api, "vhosts")] == ["/", "a/b"]
    await admin(api, "declare", "queue", "name=q", vhost="a/b")
    assert [each["name"] for each in await listed(api, "queues", vhost="a/b")] == ["q"]
    await admin(api, "declare", "user", "name=ann", "password=secret", "tags=monitoring")
    await admin(
        api,
        *("declare", "permission", "vhost=a/b", "user=ann", "configure=", "write=^q$", "read="),
    )
    assert api.node.access.may("ann", "a/b", Permission.WRITE, "q")
    assert {each["user"] for each in await listed(api, "permissions")} == {"ann", "guest"}
    assert json.loads(await admin(api, "-u", "ann", "-p", "secret", "list", "nodes"))
    await admin(api, "delete", "permission", "vhost=a/b", "user=ann")
    await admin(api, "delete", "user", "name=ann")
    await admin(api, "delete", "vhost", "name=a/b")
    assert [each["name"] for each in await listed(api, "users", "name")] == ["guest"]


async def test_policies_and_limits(api: Api) -> None:
    definition = 'definition={"max-length": 5}'
    for kind in ("policy", "operator_policy"):
        await admin(api, "declare", kind, "name=p", "pattern=^q", definition, "apply-to=queues")
    for kind in ("policies", "operator_policies"):
        (shown,) = await listed(api, kind)
        assert (shown["name"], shown["definition"]) == ("p", {"max-length": 5})
    for kind in ("policy", "operator_policy"):
        await admin(api, "delete", kind, "name=p")
    await admin(api, "declare", "vhost_limit", "vhost=/", "name=max-queues", "value=7")
    assert await listed(api, "vhost_limits") == [{"vhost": "/", "value": {"max-queues": 7}}]
    (shown,) = await listed(api, "parameters")
    assert (shown["component"], shown["value"]) == ("vhost-limits", {"max-queues": 7})
    parameter = ("parameter", "component=vhost-limits", "name=limits")
    await admin(api, "declare", *parameter, 'value={"max-connections": 9}')
    assert api.node.administration.vhost_limits("/") == {"max-connections": 9}
    await admin(api, "delete", *parameter)
    assert api.node.administration.vhost_limits("/") == {}
    await admin(api, "declare", "vhost_limit", "vhost=/", "name=max-queues", "value=7")
    await admin(api, "delete", "vhost_limit", "vhost=/", "name=max-queues")
    assert await listed(api, "vhost_limits") == await listed(api, "parameters") == []


async def test_export_and_import(api: Api, tmp_path: Path) -> None:
    await admin(api, "declare", "queue", "name=q")
    await admin(api, "declare", "user", "name=ann", "password=secret", "tags=monitoring")
    api.node.administration.set_global_parameter("mine", [1, None])
    api.node.administration.set_vhost_limits("/", {"max-queues": 7})
    file = str(tmp_path / "definitions.json")
    await admin(api, "export", file, vhost=None)
    await admin(api, "delete", "queue", "name=q")
    await admin(api, "delete", "user", "name=ann")
    api.node.administration.delete_global_parameter("mine")
    api.node.administration.set_vhost_limits("/", {})
    await admin(api, "import", file, vhost=None)
    assert api.node.administration.global_parameters() == {"mine": [1, None]}
    assert api.node.administration.vhost_limits("/") == {"max-queues": 7}
    assert [each["name"] for each in await listed(api, "queues", "name")] == ["q"]
    assert api.node.access.authenticate("ann", "secret") is not None


async def test_overview_and_empty_lists(api: Api) -> None:
    (overview,) = json.loads(await admin(api, "show", "overview"))
    assert overview["object_totals"]["exchanges"] == 6
    for kind in ("connections", "channels", "consumers"):
        assert await listed(api, kind) == []
