"""``broker-client store``: checks and compacts the file of a stopped built-in broker."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from broker_client.cli.node_file import FilePath, failed
from broker_client.cli.options import AsJsonLine
from broker_client.errors import StoreCorruptError, StoreError
from broker_client.store.maintenance import CheckReport
from broker_client.store.maintenance import check as check_file
from broker_client.store.maintenance import compact as compact_file

store_app: typer.Typer = typer.Typer(
    help="Check or compact the file of a built-in broker that is not running.", no_args_is_help=True
)


@store_app.command()
def check(path: FilePath, as_json: AsJsonLine = False) -> None:
    """Verify everything in the file, and print its queues and any damage.

    Changes nothing. Exits with status 1 if something is damaged.
    """
    try:
        report = check_file(path)
    except StoreCorruptError as error:  # whose text sends the reader here
        raise failed(str(StoreError(error.path, error.reason))) from None
    except StoreError as error:
        raise failed(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(report)))
        if report.problems:
            raise typer.Exit(1)
        return
    Console(file=sys.stdout).print(_table(report))
    typer.echo(
        f"{path}: schema {report.schema}, {report.messages:,} messages, {report.size_bytes:,} bytes"
    )
    for problem in report.problems:
        typer.echo(f"{path}: {problem}", err=True)
    if report.problems:
        typer.echo(
            f"{path}: damaged; restore a backup, or save what can be read with "
            f"broker-client store compact --drop-damaged {path}",
            err=True,
        )
        raise typer.Exit(1)
    typer.echo(f"{path}: ok")


@store_app.command()
def compact(
    path: FilePath,
    drop_damaged: Annotated[
        bool,
        typer.Option(
            "--drop-damaged",
            help="Keep what can be read and drop the rest; the damaged file is kept, too.",
        ),
    ] = False,
    as_json: AsJsonLine = False,
) -> None:
    """Rewrite the file without its free space."""
    try:
        report = compact_file(path, drop_damaged=drop_damaged)
    except StoreError as error:
        raise failed(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(report)))
        return
    typer.echo(
        f"{path}: {report.messages:,} messages, from {report.before_bytes:,} bytes to "
        f"{report.after_bytes:,}"
    )
    if report.kept_as is not None:
        typer.echo(f"{path}: {report.lost:,} entries lost; the damaged file is {report.kept_as}")


def _table(report: CheckReport) -> Table:
    table = Table("vhost", "queue")
    for column in ("messages", "deferred", "bytes"):
        table.add_column(column, justify="right")
    for queue in report.queues:
        numbers = (queue.waiting + queue.deferred, queue.deferred, queue.body_bytes)
        table.add_row(queue.vhost, queue.name, *(f"{number:,}" for number in numbers))
    return table
