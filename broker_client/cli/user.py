"""``broker-client user``: the users of a broker in a file, and what they may do."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker_client.cli.node_file import FilePath, failed, run_on_file
from broker_client.cli.options import AsJsonLine
from broker_client.cli.passwords import PasswordFile, password_of
from broker_client.cli.steering import definitions_of
from broker_client.errors import UnknownNameError
from broker_client.node.node import Node

user_app: typer.Typer = typer.Typer(
    help="Manage the users of a broker in a file; to change them, no process may have it open.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="administrator, monitoring, policymaker, management or impersonator; may be repeated.",
        show_default=False,
    ),
]


@user_app.command()
def add(
    path: FilePath,
    name: Name,
    tag: Tags = None,
    password_file: PasswordFile = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Create a user who cannot log in with a password.")
    ] = False,
) -> None:
    """Add a user, without permissions yet.

    The password comes from --password-file, BROKER_CLIENT_PASSWORD or a prompt. It is never an
    argument, which other users of the machine could read.
    """

    def check(node: Node) -> None:
        if name in node.access.users:
            raise failed(f"there is a user {name!r} already; passwd changes its password")

    if Path(path).exists():
        run_on_file(path, check)  # before a password is asked for
    password = None if no_password else _password(name, password_file)

    def command(node: Node) -> None:
        check(node)
        node.access.add_user(name, password, tags=tag or ())

    run_on_file(path, command, create=True)
    typer.echo(f"user {name!r} added; to give permissions: broker-client user permit {path} ...")


@user_app.command()
def passwd(path: FilePath, name: Name, password_file: PasswordFile = None) -> None:
    """Change the password of a user. It is read as for add."""
    # Ask for nothing before it is known that there is such a user.
    run_on_file(path, lambda node: node.access.users.user(name))
    password = _password(name, password_file)
    run_on_file(path, lambda node: node.access.set_password(name, password))
    typer.echo(f"password of user {name!r} changed")


@user_app.command()
def delete(path: FilePath, name: Name) -> None:
    """Delete a user and its permissions."""
    run_on_file(path, lambda node: node.access.remove_user(name))
    typer.echo(f"user {name!r} deleted")


@user_app.command("list")
def list_users(
    path: FilePath,
    as_json: AsJsonLine = False,
) -> None:
    """Show users, tags and permissions."""
    described = _described(definitions_of(path)["document"])
    if as_json:
        typer.echo(json.dumps(described))
        return
    table = Table("user", "tags", "vhost", "exchange", "configure", "write", "read")
    for user in described:
        head = (user["name"], ", ".join(user["tags"]))
        rights = [
            (
                each["vhost"],
                each.get("exchange", ""),
                each.get("configure", ""),
                each["write"],
                each["read"],
            )
            for each in [*user["permissions"], *user["topic_permissions"]]
        ]
        for row in rights or [("", "", "", "", "")]:
            table.add_row(*map(Text, (*head, *row)))
            head = ("", "")
    Console(file=sys.stdout).print(table)


@user_app.command()
def permit(
    path: FilePath,
    name: Name,
    vhost: Annotated[str, typer.Option(help="Vhost of the permissions.")] = "/",
    configure: Annotated[
        str,
        typer.Option(
            metavar="PATTERN", help="Pattern of names to declare and delete. Default: none."
        ),
    ] = "",
    write: Annotated[
        str,
        typer.Option(
            metavar="PATTERN", help="Pattern of names to publish to and bind to. Default: none."
        ),
    ] = "",
    read: Annotated[
        str,
        typer.Option(
            metavar="PATTERN", help="Pattern of names to consume from and bind from. Default: none."
        ),
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="Use .* for all three.")] = False,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="EXCHANGE",
            help="--write and --read are for the routing keys of this topic exchange.",
            show_default=False,
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the permissions instead.")] = False,
) -> None:
    """Set the permissions of a user in a vhost, as regular expressions of names.

    A pattern that is left out permits nothing. Patterns match anywhere in a name; write ^orders$
    for one name. The default exchange is called amq.default.
    """
    if all_ and (configure or write or read or clear or topic is not None):
        raise typer.BadParameter(
            "--all cannot be combined with other permissions", param_hint="--all"
        )
    if clear and (configure or write or read):
        raise typer.BadParameter("--clear cannot be combined with patterns", param_hint="--clear")
    if topic is not None and configure:
        raise typer.BadParameter("routing keys are not configured", param_hint="--configure")
    if all_:
        configure = write = read = ".*"

    def command(node: Node) -> None:
        access = node.access
        access.users.user(name)
        if not node.administration.has_vhost(vhost):
            raise UnknownNameError("vhost", vhost, list(node.administration.vhosts))
        if clear and topic is not None:
            access.clear_topic_permissions(name, vhost, topic)
        elif clear:
            access.clear_permissions(name, vhost)
        elif topic is not None:
            access.set_topic_permissions(name, vhost, topic, write=write, read=read)
        else:
            access.set_permissions(name, vhost, configure=configure, write=write, read=read)

    run_on_file(path, command)
    what = "permissions" if topic is None else f"permissions for exchange {topic!r}"
    typer.echo(f"{what} of user {name!r} in vhost {vhost!r} {'cleared' if clear else 'set'}")


def _described(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The users of definitions, each with its permissions and without its password."""

    def of(user: str, kind: str) -> list[dict[str, Any]]:
        found = (each for each in document[kind] if each["user"] == user)
        return [{key: each[key] for key in each if key != "user"} for each in found]

    return [
        {
            "name": user["name"],
            "tags": user["tags"],
            "permissions": of(user["name"], "permissions"),
            "topic_permissions": of(user["name"], "topic_permissions"),
        }
        for user in document["users"]
    ]


def _password(name: str, file: Path | None) -> str:
    """The new password, which is not empty."""
    password = password_of(name, file, is_new=True)
    if not password:
        raise failed("the password is empty; --no-password makes a user who cannot log in")
    return password
