"""Imports definitions: first all of a file is read into a plan, which then is carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from broker_client.errors import BrokerClientError, InvalidDefinitionsError
from broker_client.node.definitions.importing_policies import (
    read_global_parameter,
    read_parameter,
    read_policy,
)
from broker_client.node.definitions.importing_topology import (
    read_binding,
    read_exchange,
    read_queue,
)
from broker_client.node.definitions.importing_users import (
    read_permissions,
    read_topic_permissions,
    read_user,
)
from broker_client.node.definitions.importing_vhosts import read_vhost, read_vhost_values
from broker_client.node.definitions.items import Item
from broker_client.node.definitions.plan import Plan
from broker_client.node.node import Node
from broker_client.runtime.pace import paced
from broker_client.runtime.slotted import slotted

_ABOUT_THE_FILE = frozenset(
    (
        "explanation",
        "original_cluster_name",
        "original_vhost_name",
        "product_name",
        "product_version",
        "rabbit_version",
        "rabbitmq_definition_format",
        "rabbitmq_version",
    )
)
_READERS: Mapping[str, Callable[[Plan, Item], bool]] = {
    "vhosts": read_vhost,
    "users": read_user,
    "permissions": read_permissions,
    "topic_permissions": read_topic_permissions,
    "parameters": read_parameter,
    "global_parameters": read_global_parameter,
    "policies": read_policy,
    "exchanges": read_exchange,
    "queues": read_queue,
    "bindings": read_binding,
}
"""By section, in the order in which what one needs comes before it; each says whether it is going
to be there."""
_OF_A_VHOST = frozenset(("description", "tags", "metadata", "limits", "default_queue_type"))
"""What stands beside the sections in a file for one vhost."""


@slotted
class ImportReport:
    """What an import has done."""

    counts: Mapping[str, int]
    """How many of each section there were that are now there."""
    notes: tuple[str, ...]
    """What was left out, has no effect here, or was there already and is different."""


def import_definitions(node: Node, document: Any, vhost: str | None = None) -> ImportReport:
    """Add what `document` defines, and change what is there already and can be changed.

    Args:
        node: gets it.
        document: decoded JSON, as RabbitMQ exports it: of a whole broker, or of one vhost.
        vhost: where a file of one vhost goes; of one of a whole broker, only what belongs there is
            taken. The vhost is added where there is none.

    Raises:
        InvalidDefinitionsError: something in it cannot be; nothing is imported.
    """
    plan = Plan(node, vhost)
    for _ in _reading(plan, document):
        pass
    _check(plan)
    for step in plan.steps:
        step()
    node.wake()
    return _report(plan)


async def import_in_steps(node: Node, document: Any, vhost: str | None = None) -> ImportReport:
    """As `import_definitions`, with turns of the event loop in between for others.

    What somebody deletes or declares otherwise meanwhile stays so, with a note.

    Raises:
        InvalidDefinitionsError: something in it cannot be; nothing is imported.
    """
    plan = Plan(node, vhost)
    async for _ in paced(_reading(plan, document)):
        pass
    _check(plan)
    async for step in paced(plan.steps):
        node.wake()
        try:
            step()
        except BrokerClientError as error:
            plan.notes.append(f"left out, since something else was changed meanwhile: {error}")
    return _report(plan)


def _check(plan: Plan) -> None:
    if plan.problems:
        raise InvalidDefinitionsError(plan.problems)


def _report(plan: Plan) -> ImportReport:
    return ImportReport(plan.counts, tuple(dict.fromkeys(plan.notes)))


def _reading(plan: Plan, document: Any) -> Iterator[None]:
    """Have each object read by the reader of its section, one a step."""
    if not isinstance(document, dict):
        plan.problems.append(f"definitions are an object, not {document!r:.60}")
        return
    known = _ABOUT_THE_FILE | set(_READERS)
    is_of_one_vhost = "vhosts" not in document and plan.vhost is not None
    plan.goes_into = plan.vhost if is_of_one_vhost else None
    if not set(_READERS) & set(document):
        plan.problems.append(f"there is none of the sections {', '.join(_READERS)}")
    for key in document:
        if key not in known and not (is_of_one_vhost and key in _OF_A_VHOST):
            plan.notes.append(f"{key}: not supported, left out")
    if plan.vhost is not None:
        plan.add_vhost(plan.vhost, "vhost")
        if is_of_one_vhost:
            read_vhost_values(plan, Item("", document, plan.problems), plan.vhost)
    for section, reader in _READERS.items():
        items = document.get(section, [])
        if not isinstance(items, list):
            plan.problems.append(f"{section}: {items!r:.60} is not a list")
            continue
        for at, values in enumerate(items):
            yield
            path = f"{section}[{at}]"
            if not isinstance(values, dict):
                plan.problems.append(f"{path}: {values!r:.60} is not an object")
                continue
            item = Item(path, values, plan.problems)
            if reader(plan, item) and item.is_right:
                plan.counts[section] = plan.counts.get(section, 0) + 1
