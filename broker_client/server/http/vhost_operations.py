"""Vhosts over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.core.access import ADMINISTRATOR
from broker_client.core.vhost_metadata import CLASSIC, VHostMetadata, split_tags
from broker_client.core.virtual_host import VirtualHost
from broker_client.node.definitions.exporting import metadata_object
from broker_client.server.http.calls import CREATED, NO_CONTENT, Call, Operations, flag, text
from broker_client.server.http.errors import bad_request, not_found

operations: Operations = Operations()


def _vhost_object(call: Call, vhost: VirtualHost) -> dict[str, Any]:
    ready = sum(len(queue.ready) for queue in vhost.queues.values())
    in_flight = sum(queue.in_flight for queue in vhost.queues.values())
    metadata = metadata_object(vhost.metadata)
    return {
        "name": vhost.name,
        **metadata,
        "metadata": metadata,
        "tracing": False,
        "cluster_state": {call.management.name: "running"},
        "messages": ready + in_flight,
        "messages_ready": ready,
        "messages_unacknowledged": in_flight,
    }


@operations.listing("/api/vhosts", "All vhosts")
async def list_vhosts(call: Call) -> Any:
    return [_vhost_object(call, vhost) for vhost in call.watched_vhosts()]


@operations.get("/api/vhosts/{vhost}", "One vhost", ADMINISTRATOR)
async def get_vhost(call: Call) -> Any:
    return _vhost_object(call, call.vhost())


@operations.put(
    "/api/vhosts/{vhost}",
    "Add a vhost, or replace its description, tags and default queue type",
    ADMINISTRATOR,
    body=("description", "tags", "default_queue_type", "tracing"),
)
async def put_vhost(call: Call) -> int:
    data, name = await call.json(), call.name("vhost")
    if not name:
        raise bad_request("the name of a vhost must not be empty")
    metadata = _metadata_of(data)
    metadata.check(name)
    is_new = call.node.administration.add_vhost(name)
    call.node.administration.set_vhost_metadata(name, **metadata_object(metadata))
    if is_new:  # RabbitMQ: whoever adds a vhost may use it
        call.node.access.set_permissions(
            call.caller.name, name, configure=".*", write=".*", read=".*"
        )
    return CREATED if is_new else NO_CONTENT


def _metadata_of(data: Mapping[str, Any]) -> VHostMetadata:
    """RabbitMQ: what is not given is as in a new vhost, also where there was something."""
    if flag(data, "tracing", False):
        raise bad_request("tracing is not supported: this broker copies no messages to a trace")
    type = data.get("default_queue_type")
    if type in (None, "", "undefined"):
        type = CLASSIC
    if not isinstance(type, str):
        raise bad_request("default_queue_type must be a string")
    tags = data.get("tags") or []
    if isinstance(tags, str):
        tags = split_tags(tags)
    if not isinstance(tags, list | tuple) or not all(isinstance(each, str) for each in tags):
        raise bad_request("tags must be a list or a text")
    description = "" if data.get("description") is None else text(data, "description")
    return VHostMetadata(description, tuple(tags), type)


@operations.delete(
    "/api/vhosts/{vhost}", "Delete a vhost with all in it, and close its connections", ADMINISTRATOR
)
async def delete_vhost(call: Call) -> int:
    if not call.node.administration.delete_vhost(call.name("vhost")):
        raise not_found()
    return NO_CONTENT


@operations.listing("/api/vhosts/{vhost}/permissions", "Permissions in a vhost", ADMINISTRATOR)
async def vhost_permissions(call: Call) -> Any:
    name = call.vhost().name
    return [each for each in call.management.permissions() if each["vhost"] == name]


@operations.listing(
    "/api/vhosts/{vhost}/topic-permissions", "Topic permissions in a vhost", ADMINISTRATOR
)
async def vhost_topic_permissions(call: Call) -> Any:
    name = call.vhost().name
    return [each for each in call.management.topic_permissions() if each["vhost"] == name]
