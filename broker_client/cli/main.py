"""The command ``broker-client``.

The modules of the commands are imported when they are used: most of them need much of the package,
and a shell that asks for completions, or a reader of ``--help``, should not have to wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

_INTERRUPTED = 130  # as shells count SIGINT


class _Place(NamedTuple):
    """Where a command is, and the line about it in the list of commands."""

    module: str
    name: str
    """A function, or an application of several commands."""
    help: str


_COMMANDS = {
    "check": _Place(
        "check",
        "check",
        "Check configurations without connecting, and show what one declares.",
    ),
    "import-rascal": _Place(
        "import_rascal",
        "import_rascal",
        "Convert a configuration of Node's rascal to YAML for this client.",
    ),
    "plan": _Place(
        "plan",
        "plan",
        "Show what `apply` would change on the brokers of a configuration; change nothing.",
    ),
    "apply": _Place(
        "plan",
        "apply",
        "Show the plan, ask for confirmation, and declare the configuration.",
    ),
    "doctor": _Place(
        "doctor",
        "doctor",
        "Check login, permissions, topology, quorum, alarms and clock of a broker.",
    ),
    "graph": _Place(
        "graph",
        "graph",
        "Draw the exchanges, queues and bindings of a configuration, or of a broker.",
    ),
    "run": _Place(
        "run",
        "run",
        "Run the handlers of a program until SIGTERM or SIGINT, then shut down gracefully.",
    ),
    "asyncapi": _Place(
        "asyncapi",
        "asyncapi",
        "Print an AsyncAPI 3.1 document of publications, subscriptions and their models.",
    ),
    "serve": _Place(
        "serve",
        "serve",
        "Run the built-in broker for AMQP 0-9-1 clients, until SIGTERM or SIGINT.",
    ),
    "dashboard": _Place(
        "dashboard",
        "dashboard",
        "Serve the dashboard for RabbitMQ, or for a built-in broker on another machine.",
    ),
    "publish": _Place(
        "messages",
        "publish",
        "Publish persistent messages with confirms: one for each file or line of standard input.",
    ),
    "get": _Place(
        "messages",
        "get",
        "Take messages out of a queue and print them.",
    ),
    "peek": _Place(
        "messages",
        "peek",
        "Print messages and leave them in the queue, marked as redelivered.",
    ),
    "tail": _Place(
        "tail",
        "tail",
        "Print messages as they arrive: copies of them or, with --take, the messages themselves.",
    ),
    "purge": _Place(
        "messages",
        "purge",
        "Drop the ready messages of a queue.",
    ),
    "move": _Place(
        "moves",
        "move_messages",
        "Move messages to another queue; each copy is confirmed before its original is acked.",
    ),
    "replay": _Place(
        "moves",
        "replay_messages",
        "Move dead letters back to the queues where they died; without --yes, only count them.",
    ),
    "backup": _Place(
        "backup",
        "backup",
        "Copy the file of a built-in broker, whether or not the broker is running.",
    ),
    "stats": _Place(
        "stats",
        "stats",
        "Count the messages in the file of a built-in broker by queue, also while it runs.",
    ),
    "queues": _Place(
        "queues",
        "queues",
        "List the queues of a broker with their messages and consumers.",
    ),
    "top": _Place(
        "queues",
        "top",
        "List the queues live; keys change the order, q quits.",
    ),
    "pause": _Place(
        "queues",
        "pause",
        "Stop the deliveries of a queue of the built-in broker until it is resumed.",
    ),
    "resume": _Place(
        "queues",
        "resume",
        "Resume the deliveries of a paused queue.",
    ),
    "schema": _Place(
        "schema",
        "schema",
        "Print the JSON schema of the configuration, for editors.",
    ),
    "store": _Place(
        "store",
        "store_app",
        "Check or compact the file of a built-in broker that is not running.",
    ),
    "user": _Place(
        "user",
        "user_app",
        "Manage the users of a broker in a file; to change them, no process may have it open.",
    ),
    "vhost": _Place(
        "vhost",
        "vhost_app",
        "Manage the vhosts of a broker in a file; to change them, no process may have it open.",
    ),
    "definitions": _Place(
        "definitions",
        "definitions_app",
        "Export and import a broker's definitions in RabbitMQ's JSON format.",
    ),
}


class _Commands(TyperGroup):
    """All commands: Ctrl-C ends each of them with the same status, also at a question."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, place in _COMMANDS.items():
            self.add_command(TyperCommand(name, help=place.help))

    def load(self, name: str) -> None:
        """Put the command `name`, if there is one, in the place of its line."""
        if place := _COMMANDS.get(name):
            found = getattr(import_module(f"broker_client.cli.{place.module}"), place.name)
            if isinstance(found, typer.Typer):
                self.add_command(typer.main.get_group(found), name)
            else:
                single = typer.Typer(add_completion=False)
                single.command(name)(found)
                self.add_command(typer.main.get_command(single))

    def load_all(self) -> None:
        """Load every command."""
        for name in _COMMANDS:
            self.load(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.load(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            pass
        except typer.Abort as abort:
            if not isinstance(abort.__context__, KeyboardInterrupt):
                raise
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED)


app: typer.Typer = typer.Typer(
    name="broker-client",
    cls=_Commands,
    help="Declarative AMQP client with a built-in broker.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold a password
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from broker_client.runtime.version import package_version

        typer.echo(f"broker-client {package_version()}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Declarative AMQP client with a built-in broker."""


def every_command() -> dict[str, Any]:
    """All commands, loaded, by name."""
    group = typer.main.get_group(app)
    assert isinstance(group, _Commands), "the class that `app` was given"
    group.load_all()
    return dict(group.commands)
