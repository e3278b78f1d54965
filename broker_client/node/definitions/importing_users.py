"""Reads users and their permissions out of definitions."""

from __future__ import annotations

from broker_client.core.access import SHA256
from broker_client.core.access_pattern import AccessPattern
from broker_client.core.names import name_problem
from broker_client.errors import UsageError
from broker_client.node.definitions.items import Item
from broker_client.node.definitions.plan import Plan


def read_user(plan: Plan, item: Item) -> bool:
    """A user, with the hash of its password, or with the password."""
    if plan.vhost is not None:
        return False
    name = item.get("name", str)
    password_hash = item.get("password_hash", str, "")
    algorithm = item.get("hashing_algorithm", str, SHA256)
    password = item.get("password", str, "")
    tags = item.values.get("tags", [])
    item.known.add("tags")
    if isinstance(tags, str):
        tags = tags.split(",")  # before RabbitMQ 3.9
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        item.problem("tags", f"{tags!r:.60} is not a list of texts")
    try:
        plan.node.access.users.check_user(name, password_hash, algorithm)
    except UsageError as error:
        item.problem("", str(error))
    plan.users.add(name)
    plan.without_effect(item, f"user {name!r}")
    access = plan.node.access
    if password and not password_hash:
        plan.steps.append(lambda: access.add_user(name, password, tags=tags))
    else:
        plan.steps.append(lambda: access.import_user(name, password_hash, algorithm, tags))
    return True


def read_permissions(plan: Plan, item: Item) -> bool:
    """The permissions of a user in a vhost."""
    if plan.vhost is not None:
        return False
    vhost, user = plan.vhost_of(item), _user_of(plan, item)
    patterns = _patterns(item, "configure", "write", "read")
    access = plan.node.access
    if vhost is not None:
        plan.steps.append(lambda: access.set_permissions(user, vhost, **patterns))
    return True


def read_topic_permissions(plan: Plan, item: Item) -> bool:
    """The topic permissions of a user for an exchange."""
    if plan.vhost is not None:
        return False
    vhost, user = plan.vhost_of(item), _user_of(plan, item)
    exchange = item.get("exchange", str)
    if problem := name_problem(exchange):
        item.problem("exchange", problem)
    patterns = _patterns(item, "write", "read")
    access = plan.node.access
    if vhost is not None:
        plan.steps.append(lambda: access.set_topic_permissions(user, vhost, exchange, **patterns))
    return True


def _user_of(plan: Plan, item: Item) -> str:
    user = item.get("user", str)
    if item.is_right and user not in plan.users:
        item.problem("user", f"there is no user {user!r}")
    return user


def _patterns(item: Item, *keys: str) -> dict[str, str]:
    patterns = {key: item.get(key, str) for key in keys}
    for key, pattern in patterns.items():
        try:
            AccessPattern(pattern).check()
        except UsageError as error:
            item.problem(key, str(error))
    return patterns
