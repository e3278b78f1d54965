"""``broker-client backup``: a copy of the file of a built-in broker, which may be running."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from broker_client.cli.node_file import FilePath, failed
from broker_client.cli.options import AsJson
from broker_client.cli.paths import path_of_file
from broker_client.cli.progress import Progress
from broker_client.errors import StoreError


def backup(
    path: FilePath,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="File to write, where nothing is yet.",
            show_default=False,
            callback=path_of_file,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy the file of a built-in broker, whether or not the broker is running.

    The copy has everything that was confirmed before the command began.
    """
    from broker_client.store.backup import backup as backup_file  # no other command needs it

    line = Progress("pages copied")

    def copied(pages: int, total: int) -> None:
        line.total = total
        line.show(pages)

    try:
        report = backup_file(path, target, copied)
    except StoreError as error:
        line.end()
        raise failed(str(error)) from None
    except KeyboardInterrupt:
        line.end()
        typer.echo("interrupted; nothing was written", err=True)
        raise typer.Exit(130) from None
    line.end()
    if as_json:
        told = {"path": report.path, "messages": report.messages, "bytes": report.size_bytes}
        typer.echo(json.dumps(told))
    else:
        typer.echo(f"{report.path}: {report.messages:,} messages, {report.size_bytes:,} bytes")
