"""The command ``broker-client``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from broker_client.cli.asyncapi import asyncapi
from broker_client.cli.backup import backup
from broker_client.cli.check import check
from broker_client.cli.dashboard import dashboard
from broker_client.cli.definitions import definitions_app
from broker_client.cli.doctor import doctor
from broker_client.cli.graph import graph
from broker_client.cli.import_rascal import import_rascal
from broker_client.cli.messages import get, peek, publish, purge
from broker_client.cli.moves import move_messages, replay_messages
from broker_client.cli.plan import apply, plan
from broker_client.cli.queues import pause, queues, resume, top
from broker_client.cli.run import run
from broker_client.cli.serve import serve
from broker_client.cli.stats import stats
from broker_client.cli.store import store_app
from broker_client.cli.tail import tail
from broker_client.cli.user import user_app
from broker_client.cli.vhost import vhost_app
from broker_client.config.schema import config_schema
from broker_client.runtime.version import package_version

_INTERRUPTED = 130  # as shells count SIGINT


class _Commands(TyperGroup):
    """All commands: Ctrl-C ends each of them with the same status, also at a question."""

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
        typer.echo(f"broker-client {package_version()}")
        raise typer.Exit


app.command("check")(check)
app.command("import-rascal")(import_rascal)
app.command("plan")(plan)
app.command("apply")(apply)
app.command("doctor")(doctor)
app.command("graph")(graph)
app.command("run")(run)
app.command("asyncapi")(asyncapi)
app.command("serve")(serve)
app.command("dashboard")(dashboard)
app.command("publish")(publish)
app.command("get")(get)
app.command("peek")(peek)
app.command("tail")(tail)
app.command("purge")(purge)
app.command("move")(move_messages)
app.command("replay")(replay_messages)
app.command("backup")(backup)
app.command("stats")(stats)
app.command("queues")(queues)
app.command("top")(top)
app.command("pause")(pause)
app.command("resume")(resume)
app.add_typer(store_app, name="store")
app.add_typer(user_app, name="user")
app.add_typer(vhost_app, name="vhost")
app.add_typer(definitions_app, name="definitions")


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


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    typer.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))
