"""``broker-client stats``: what the file of a built-in broker holds, running or not."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table

from broker_client.cli.node_file import FilePath, failed
from broker_client.cli.options import AsJsonLine
from broker_client.errors import StoreError
from broker_client.store.statistics import KeptStats, read_stats


def stats(
    path: FilePath,
    as_json: AsJsonLine = False,
) -> None:
    """Count the messages in the file of a built-in broker by queue, also while it runs."""
    try:
        found = read_stats(path)
    except StoreError as error:
        raise failed(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    Console(file=sys.stdout).print(_table(found))
    typer.echo(f"{path}: {found.messages:,} messages, {found.file_bytes:,} bytes")


def _table(found: KeptStats) -> Table:
    table = Table("vhost", "queue")
    for column in ("waiting", "deferred", "delivered", "most attempts", "bytes"):
        table.add_column(column, justify="right")
    for queue in found.queues:
        numbers = (
            queue.waiting,
            queue.deferred,
            queue.delivered,
            queue.most_attempts,
            queue.body_bytes,
        )
        table.add_row(queue.vhost, queue.name, *(f"{number:,}" for number in numbers))
    return table
