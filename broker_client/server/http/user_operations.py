"""Users and permissions over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.core.access import ADMINISTRATOR, DEFAULT_EXCHANGE, SHA256
from broker_client.node.definitions.exporting import permission_object, user_object
from broker_client.server.http.calls import (
    CREATED,
    NO_CONTENT,
    Call,
    Operations,
    text,
)
from broker_client.server.http.descriptions import topic_permission_object
from broker_client.server.http.errors import bad_request, not_found

operations: Operations = Operations()

_PATTERNS = ("configure", "write", "read")


@operations.get("/api/whoami", "The user who asks, with its permissions")
async def whoami(call: Call) -> Any:
    name = call.caller.name
    permissions = [each for each in call.management.permissions() if each["user"] == name]
    return {
        "name": name,
        "tags": list(call.caller.user.tags),
        "broker_client": {"permissions": permissions},
    }


# --------------------------------------------------------------------------- users


@operations.listing("/api/users", "All users", ADMINISTRATOR)
async def list_users(call: Call) -> Any:
    return [user_object(each) for each in call.node.access.users]


@operations.listing(
    "/api/users/without-permissions", "Users without any permissions", ADMINISTRATOR
)
async def users_without_permissions(call: Call) -> Any:
    users = call.node.access.users
    permitted = {each.user for each in users.permissions()}
    return [user_object(each) for each in users if each.name not in permitted]


@operations.get("/api/users/{user}", "One user", ADMINISTRATOR)
async def get_user(call: Call) -> Any:
    return user_object(call.node.access.users.user(_known_user(call)))


@operations.put(
    "/api/users/{user}",
    "Add a user, or replace its password and tags",
    ADMINISTRATOR,
    body=("password", "password_hash", "hashing_algorithm", "tags"),
)
async def put_user(call: Call) -> int:
    name, data, access = call.name("user"), await call.json(), call.node.access
    is_new = name not in access.users
    tags = _tags(data)
    if "password" in data:
        access.add_user(name, text(data, "password"), tags=tags)
    elif "password_hash" in data:
        algorithm = text(data, "hashing_algorithm", SHA256)
        access.import_user(name, text(data, "password_hash"), algorithm, tags)
    elif is_new:
        access.add_user(name, None, tags=tags)  # RabbitMQ: a user who cannot log in
    else:
        access.set_tags(name, tags)
    return CREATED if is_new else NO_CONTENT


@operations.delete("/api/users/{user}", "Delete a user, and close its connections", ADMINISTRATOR)
async def delete_user(call: Call) -> int:
    name = _known_user(call)
    call.node.access.remove_user(name)
    call.management.close_connections_of(name, f"user '{name}' is deleted")
    return NO_CONTENT


@operations.listing("/api/users/{user}/permissions", "Permissions of a user", ADMINISTRATOR)
async def user_permissions(call: Call) -> Any:
    name = _known_user(call)
    return [each for each in call.management.permissions() if each["user"] == name]


@operations.listing(
    "/api/users/{user}/topic-permissions", "Topic permissions of a user", ADMINISTRATOR
)
async def user_topic_permissions(call: Call) -> Any:
    name = _known_user(call)
    return [each for each in call.management.topic_permissions() if each["user"] == name]


# --------------------------------------------------------------------------- permissions


@operations.listing("/api/permissions", "All permissions", ADMINISTRATOR)
async def list_permissions(call: Call) -> Any:
    return call.management.permissions()


@operations.get(
    "/api/permissions/{vhost}/{user}", "Permissions of a user in a vhost", ADMINISTRATOR
)
async def get_permissions(call: Call) -> Any:
    vhost, user = call.vhost().name, _known_user(call)
    for each in call.node.access.users.permissions():
        if (each.vhost, each.user) == (vhost, user):
            return permission_object(each)
    raise not_found()


@operations.put(
    "/api/permissions/{vhost}/{user}",
    "Set the permissions of a user in a vhost",
    ADMINISTRATOR,
    body=_PATTERNS,
)
async def put_permissions(call: Call) -> int:
    vhost, user, data = call.vhost().name, _known_user(call), await call.json()
    access = call.node.access
    is_new = not access.may_use_vhost(user, vhost)
    configure, write, read = (text(data, each) for each in _PATTERNS)
    access.set_permissions(user, vhost, configure=configure, write=write, read=read)
    return CREATED if is_new else NO_CONTENT


@operations.delete(
    "/api/permissions/{vhost}/{user}", "Delete the permissions of a user in a vhost", ADMINISTRATOR
)
async def delete_permissions(call: Call) -> int:
    vhost, user = call.vhost().name, _known_user(call)
    if not call.node.access.clear_permissions(user, vhost):
        raise not_found()
    return NO_CONTENT


@operations.listing("/api/topic-permissions", "All topic permissions", ADMINISTRATOR)
async def list_topic_permissions(call: Call) -> Any:
    return call.management.topic_permissions()


@operations.listing(
    "/api/topic-permissions/{vhost}/{user}", "Topic permissions of a user in a vhost", ADMINISTRATOR
)
async def get_topic_permissions(call: Call) -> Any:
    vhost, user = call.vhost().name, _known_user(call)
    found = [
        topic_permission_object(each)
        for each in call.node.access.users.topic_permissions()
        if (each.vhost, each.user) == (vhost, user)
    ]
    if not found:
        raise not_found()
    return found


@operations.put(
    "/api/topic-permissions/{vhost}/{user}",
    "Limit the routing keys of an exchange for a user",
    ADMINISTRATOR,
    body=("exchange", "write", "read"),
)
async def put_topic_permissions(call: Call) -> int:
    vhost, user, data = call.vhost().name, _known_user(call), await call.json()
    exchange = text(data, "exchange") or DEFAULT_EXCHANGE
    access = call.node.access
    is_new = not access.limits_topics(user, vhost, exchange)
    access.set_topic_permissions(
        user, vhost, exchange, write=text(data, "write"), read=text(data, "read")
    )
    return CREATED if is_new else NO_CONTENT


@operations.delete(
    "/api/topic-permissions/{vhost}/{user}",
    "Delete the topic permissions of a user in a vhost",
    ADMINISTRATOR,
)
async def delete_topic_permissions(call: Call) -> int:
    vhost, user = call.vhost().name, _known_user(call)
    if not call.node.access.clear_topic_permissions(user, vhost):
        raise not_found()
    return NO_CONTENT


def _known_user(call: Call) -> str:
    name = call.name("user")
    if name not in call.node.access.users:
        raise not_found()
    return name


def _tags(data: Mapping[str, Any]) -> list[str]:
    """RabbitMQ: a list, or a text with commas; it must be there."""
    tags = data.get("tags")
    if isinstance(tags, str):
        return tags.split(",")
    if isinstance(tags, list) and all(isinstance(each, str) for each in tags):
        return tags
    raise bad_request("tags must be a list or a text" if "tags" in data else "key_missing: tags")
