"""``broker-client vhost``: the vhosts of a broker in a file."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from broker_client.cli.node_file import FilePath, failed, run_on_file
from broker_client.cli.options import AsJsonLine, Yes
from broker_client.cli.steering import definitions_of
from broker_client.node.node import Node

vhost_app: typer.Typer = typer.Typer(
    help="Manage the vhosts of a broker in a file; to change them, no process may have it open.",
    no_args_is_help=True,
)


class QueueType(Enum):
    """What a queue may be that names no type."""

    CLASSIC = "classic"
    QUORUM = "quorum"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the vhost.", show_default=False)]


@vhost_app.command()
def add(
    path: FilePath,
    name: Name,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    tags: Annotated[str, typer.Option(help="For people, with commas between them.")] = "",
    default_queue_type: Annotated[
        QueueType, typer.Option(help="Of queues that are declared without one.")
    ] = QueueType.CLASSIC,
) -> None:
    """Add a vhost; no user may use it yet."""

    def command(node: Node) -> None:
        if not name:
            raise failed("the name of a vhost must not be empty")
        if not node.administration.add_vhost(name):
            raise failed(f"there is a vhost {name!r} already")
        node.administration.set_vhost_metadata(
            name,
            description=description,
            tags=[tag for part in tags.split(",") if (tag := part.strip())],
            default_queue_type=default_queue_type.value,
        )

    run_on_file(path, command, create=True)
    typer.echo(f"vhost {name!r} added")


@vhost_app.command()
def delete(
    path: FilePath,
    name: Name,
    yes: Yes = False,
) -> None:
    """Delete a vhost with its exchanges, queues and messages."""

    def check(node: Node) -> None:
        if not node.administration.has_vhost(name):
            raise failed(f"there is no vhost {name!r}")

    def command(node: Node) -> None:
        if not node.administration.delete_vhost(name):
            raise failed(f"there is no vhost {name!r}")

    if not yes:
        run_on_file(path, check)
        typer.confirm(f"Delete vhost {name!r} with everything in it?", abort=True)
    run_on_file(path, command)
    typer.echo(f"vhost {name!r} deleted")


@vhost_app.command("list")
def list_vhosts(
    path: FilePath,
    as_json: AsJsonLine = False,
) -> None:
    """Show the names of all vhosts."""
    names = [each["name"] for each in definitions_of(path)["document"]["vhosts"]]
    typer.echo(json.dumps(names) if as_json else "\n".join(names))
