"""The broker in a file that no server has, for one command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from broker_client.cli.paths import path_of_file
from broker_client.errors import (
    ReplyError,
    StoreError,
    StoreLockedError,
    UsageError,
)
from broker_client.node.making import make_node
from broker_client.node.node import Node

FilePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="File of the broker.", show_default=False, callback=path_of_file
    ),
]
Result = TypeVar("Result")


def run_on_file(path: str, command: Callable[[Node], Result], *, create: bool = False) -> Result:
    """Run `command` on the node in the file at `path`, and keep its changes.

    Args:
        path: of the file.
        command: is given the node.
        create: make the file if there is none.

    Raises:
        typer.Exit: with status 1, after the error was printed.
    """
    if not create and not os.path.exists(path):
        raise failed(f"{path}: there is no such file")
    try:
        return asyncio.run(_run(path, command))
    except StoreLockedError as error:
        hint = "stop it first, or use its management API"
        raise failed(f"{error}: {hint}") from None
    except ReplyError as error:
        raise failed(error.reply_text) from None
    except (StoreError, UsageError) as error:
        raise failed(str(error)) from None


async def _run(path: str, command: Callable[[Node], Result]) -> Result:
    node = make_node(path, durable=True)
    await node.recover()
    try:
        node.administration.add_vhost("/")
        return command(node)
    finally:
        await node.close()


def write_output(
    file: Path | None, content: str | bytes, opener: Callable[[str, int], int] | None = None
) -> None:
    """Write to `file`, or to standard output without one.

    Raises:
        typer.Exit: with status 1, after the error was printed.
    """
    if file is None:
        typer.echo(content, nl=False)
        return
    try:
        with open(file, "wb", opener=opener) as target:
            target.write(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise failed(f"{file}: {error.strerror}") from None


def failed(text: str) -> typer.Exit:
    """Print what is wrong; returns the exception to raise."""
    typer.echo(text, err=True)
    return typer.Exit(1)
