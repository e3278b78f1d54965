"""``broker-client serve``: the built-in broker on a port."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from broker_client.cli.paths import file_path, path_of_file
from broker_client.config.listen import ListenAddress, parse_listen_address
from broker_client.config.loader import load_config
from broker_client.config.node import NodeConfig
from broker_client.errors import ConfigError, ListenError, StoreError
from broker_client.node.making import engine_settings, make_node, scan_settings
from broker_client.server.server import Server

DEFAULT_ADDRESS = "amqp://127.0.0.1:5672"


def serve(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Configuration, YAML or JSON.", parser=file_path),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps everything; without it, it is in memory.",
            callback=lambda value: None if value is None else path_of_file(value),
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help=f"Where to listen; may be repeated. [default: {DEFAULT_ADDRESS}]",
        ),
    ] = None,
) -> None:
    """Run the built-in broker for AMQP 0-9-1 clients, until SIGTERM or SIGINT."""
    addresses = [_address(text) for text in listen or [DEFAULT_ADDRESS]]
    try:
        node_config = NodeConfig() if config is None else load_config(config).node
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="INFO")
    try:
        asyncio.run(_serve(node_config, data, addresses))
    except (StoreError, ListenError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _address(text: str) -> ListenAddress:
    try:
        return parse_listen_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None


async def _serve(config: NodeConfig, data: str | None, addresses: list[ListenAddress]) -> None:
    node = make_node(
        data or "",
        durable=data is not None,
        settings=engine_settings(config),
        scan=scan_settings(config),
        event_log=config.event_log,
    )
    stopped = _stop_signals()
    await node.recover()
    try:
        server = Server(node, addresses)
        await server.start()
        try:
            kept = f"data: {data}" if data else "everything is in memory, nothing is kept"
            typer.echo(f"serving {' '.join(map(str, server.addresses))} ({kept})")
            await stopped.wait()
        finally:
            await server.stop()
    finally:
        await node.close()


def _stop_signals() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped
