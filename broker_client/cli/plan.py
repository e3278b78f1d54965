"""``broker-client plan`` and ``apply``: what a configuration changes on its brokers."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from broker_client.cli.node_file import failed
from broker_client.cli.options import AsJsonLine, Yes
from broker_client.cli.paths import path_of_file
from broker_client.cli.steering import MANAGEMENT_VARIABLE, ByFile
from broker_client.cli.where import Place, local_connector
from broker_client.config import BrokerConfig, ConnectionConfig, ManagementConfig, VhostConfig
from broker_client.config.loader import load_config
from broker_client.connection.addresses import Addresses
from broker_client.connection.connectors import Network, connectors_of
from broker_client.connection.management import VhostManagement
from broker_client.errors import (
    BrokerClientError,
    ConfigError,
    TransportError,
    way_out_of_mismatch,
)
from broker_client.planning.applying import apply_plan
from broker_client.planning.inventory import Inventory
from broker_client.planning.plan import Action, Change, plan_vhost
from broker_client.planning.reading import read_management, read_passively
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Link
from broker_client.transport.embedded.nodes import EmbeddedNodes

_CHANGES = 3
"""Exit status of a plan with changes; 2 is that of a mistyped command."""
_MANAGEMENT_TIMEOUT = 30.0  # long lists, from a broker that may be busy

Configuration = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Configuration, YAML or JSON.",
        show_default=False,
        callback=path_of_file,
    ),
]
Management = Annotated[
    str | None,
    typer.Option(
        "--management",
        metavar="URL",
        envvar=MANAGEMENT_VARIABLE,
        show_envvar=True,
        help="Of the broker's management API: http://user:password@host:15672. Its login is the "
        "connection's when left out.",
    ),
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Delete what the configuration does not declare.")
]


def plan(
    file: Configuration,
    management: Management = None,
    prune: Prune = False,
    as_json: AsJsonLine = False,
) -> None:
    """Show what `apply` would change on the brokers of a configuration; change nothing.

    Exits with status 0 if there is nothing to change, and with 3 if there is.
    """
    planned = _planned(file, management)
    if as_json:
        typer.echo(json.dumps(_document(planned)))
    else:
        _show(planned, prune=prune)
    if any(_counts(change, prune=prune) for change in planned.changes):
        raise typer.Exit(_CHANGES)


def apply(
    file: Configuration,
    management: Management = None,
    prune: Prune = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Delete what has other settings and declare it again, unless it is in use.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJsonLine = False,
) -> None:
    """Show the plan, ask for confirmation, and declare the configuration.

    Never deletes a queue that has messages or consumers. Exits with status 1 if something was
    refused or is still missing.
    """
    planned = _planned(file, management)
    todo = [change for change in planned.changes if _counts(change, prune=prune)]
    if not as_json:
        _show(planned, prune=prune)
    if todo and not yes:
        typer.confirm("Apply this?", abort=True, err=as_json)
    refused = _apply(planned, replace=replace, prune=prune) if todo else []
    refused += [f"{c.kind} {c.name}: is only checked, and not there" for c in _missing(planned)]
    if as_json:
        typer.echo(json.dumps({**_document(planned), "refused": refused}))
    else:
        for reason in refused:
            typer.echo(f"refused: {reason}", err=True)
        if todo:
            typer.echo("applied" if not refused else "applied, except for what was refused")
    if refused:
        raise typer.Exit(1)


@slotted(frozen=False)
class _Planned:
    """The plan of a configuration, and what was found for it."""

    config: BrokerConfig
    changes: list[Change]
    notes: list[str]
    inventories: dict[str, Inventory]


def _planned(file: str, management: str | None) -> _Planned:
    try:
        config = load_config(file)
        given = _management(management)
        planned = _Planned(config, [], [], {})
        for vhost in config.vhosts.values():
            inventory = _inventory(config, vhost, given)
            if inventory is None:
                planned.notes.append(
                    f"vhost {vhost.name}: a broker in memory starts empty; everything is declared "
                    "at each start"
                )
                continue
            if not inventory.is_complete:
                planned.notes.append(
                    f"vhost {vhost.name}: AMQP does not show settings, bindings and leftovers; "
                    "--management URL does"
                )
            planned.inventories[vhost.name] = inventory
            planned.changes += plan_vhost(vhost, inventory)
    except (ConfigError, BrokerClientError) as error:
        raise failed(str(error)) from None
    return planned


def _management(url: str | None) -> ManagementConfig | None:
    if url is None:
        return None
    try:
        return ManagementConfig.model_validate({"url": url, "timeout": _MANAGEMENT_TIMEOUT})
    except ValidationError as error:
        why = "; ".join(str(each["msg"]) for each in error.errors(include_input=False))
        raise failed(f"--management: {why}") from None


# --------------------------------------------------------------------------- what is there


def _inventory(
    config: BrokerConfig, vhost: VhostConfig, management: ManagementConfig | None
) -> Inventory | None:
    """What is in `vhost`; None for a broker in memory, which is empty.

    Raises:
        TransportError: none of its addresses answered.
    """
    failure: TransportError | None = None
    for connection in config.connections_of(vhost.name):
        if connection.is_embedded and management is None:
            return _of_embedded(connection, vhost)
        try:
            return asyncio.run(_of_network(connection, vhost, management))
        except TransportError as error:
            failure = failure or error
    assert failure is not None, "a vhost has at least one connection"
    raise failure


def _of_embedded(connection: ConnectionConfig, vhost: VhostConfig) -> Inventory | None:
    path = connection.store_path
    if path is None:
        return None
    if not os.path.exists(path):
        return Inventory()
    name = connection.vhost_name(vhost.name)
    found = ByFile(Place(path, name, path=path), name).inventory(name)
    return found if found.has_vhost else Inventory()


async def _of_network(
    connection: ConnectionConfig, vhost: VhostConfig, management: ManagementConfig | None
) -> Inventory:
    if management is not None and connection.is_embedded:
        found = management.completed("localhost", connection.user, connection.password)
        api = VhostManagement(found, connection.vhost_name(vhost.name))
        return await read_management(api.list_objects)
    own = "management" in connection.model_fields_set or vhost.assert_ or vhost.check
    if management is not None:
        login = connection.hostname, connection.user, connection.password
        connection = connection.model_copy(update={"management": management.completed(*login)})
    network = Network(connection, vhost.name)
    if own or management is not None:
        return await read_management((await network.management()).list_objects)
    link = await network.connector("broker-client plan").connect(timeout=connection.connect_timeout)
    try:
        return await read_passively(link, vhost)
    finally:
        await link.close()


# --------------------------------------------------------------------------- applying


def _apply(planned: _Planned, *, replace: bool, prune: bool) -> list[str]:
    async def apply_all() -> list[str]:
        nodes = EmbeddedNodes(config=planned.config.node)
        refused: list[str] = []
        try:
            for name, inventory in planned.inventories.items():
                vhost = planned.config.vhosts[name]
                changes = [change for change in planned.changes if change.vhost == name]
                link = await _first_link(vhost, nodes)
                try:
                    refused += await apply_plan(
                        link, vhost, inventory, changes, replace=replace, prune=prune
                    )
                finally:
                    await link.close()
        finally:
            await nodes.close()
        return refused

    try:
        return asyncio.run(apply_all())
    except BrokerClientError as error:
        raise failed(str(error)) from None


async def _first_link(vhost: VhostConfig, nodes: EmbeddedNodes) -> Link:
    connectors = list(connectors_of(vhost, nodes.connector).main)
    for index, connection in enumerate(vhost.connections):
        if connection.store_path is not None:  # of a process that has it open, if one has
            name = connection.vhost_name(vhost.name)
            connectors[index] = local_connector(connection.store_path, name) or connectors[index]
    return await Addresses.of(vhost, connectors).connect(once=True)


# --------------------------------------------------------------------------- what is shown

_SIGNS: Mapping[Action, str] = {"create": "+", "differs": "~", "missing": "!", "left": "-"}
_WORDS: Mapping[Action, str] = {
    "create": "to create",
    "differs": "different",
    "missing": "missing",
    "left": "left",
}


def _counts(change: Change, *, prune: bool) -> bool:
    return prune or change.action != "left"


def _missing(planned: _Planned) -> list[Change]:
    return [change for change in planned.changes if change.action == "missing"]


def _show(planned: _Planned, *, prune: bool) -> None:
    for change in planned.changes:
        typer.echo(f"{_SIGNS[change.action]} {change.vhost}: {change.kind} {change.name}")
        for line in _details(change, prune=prune):
            typer.echo(f"    {line}")
    for note in planned.notes:
        typer.echo(f"note: {note}")
    counts = Counter(change.action for change in planned.changes)
    shown = ", ".join(
        f"{counts[action]} {word}" for action, word in _WORDS.items() if counts[action]
    )
    typer.echo(shown or "nothing to change")


def _details(change: Change, *, prune: bool) -> list[str]:
    lines = [str(each) for each in change.differences]
    if change.action == "differs":
        lines.append(way_out_of_mismatch(change.kind))
    elif change.action == "missing":
        lines.append("it is only checked, and has to be there")
    elif change.action == "left" and not prune:
        lines.append("nothing declares it; --prune deletes it")
    found = change.found
    if found is not None and (found.messages or found.consumers):
        messages, consumers = found.messages or 0, found.consumers or 0
        lines.append(f"messages: {messages:,}, consumers: {consumers:,}")
    return lines


def _document(planned: _Planned) -> dict[str, Any]:
    return {
        "changes": [
            {
                "vhost": change.vhost,
                "action": change.action,
                "kind": change.kind,
                "name": change.name,
                "differences": [
                    {"setting": each.setting, "broker": each.current, "configuration": each.wanted}
                    for each in change.differences
                ],
                "messages": change.found.messages if change.found is not None else None,
                "consumers": change.found.consumers if change.found is not None else None,
            }
            for change in planned.changes
        ],
        "notes": planned.notes,
    }
