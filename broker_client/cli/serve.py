"""``broker-client serve``: the built-in broker on a port."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from broker_client.cli.definitions import lines_of, read_definitions
from broker_client.cli.http_options import BasePath, http_address_of
from broker_client.cli.logs import LogLevel, log_to_stderr
from broker_client.cli.paths import file_path, path_of_file
from broker_client.config import BrokerConfig
from broker_client.config.listen import ListenAddress, parse_listen_address
from broker_client.config.loader import load_config
from broker_client.errors import (
    ConfigError,
    InvalidDefinitionsError,
    ListenError,
    StoreError,
    UnsupportedError,
    install_extra,
)
from broker_client.node.definitions import import_definitions
from broker_client.node.making import engine_settings, make_node, scan_settings
from broker_client.node.node import Node
from broker_client.server.control import open_control
from broker_client.server.server import Server
from broker_client.server.sockets import has_inherited_sockets
from broker_client.server.systemd import notify

log: logging.Logger = logging.getLogger("broker_client.server")

DEFAULT_ADDRESS = "amqp://127.0.0.1:5672"


class _Wanted(NamedTuple):
    """What the options and the configuration ask for."""

    config: BrokerConfig
    data: str | None
    addresses: tuple[ListenAddress, ...]
    http: tuple[str, int] | None
    base_path: str
    definitions: Any
    """Decoded JSON that is imported at the start, or None."""


def serve(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Configuration, YAML or JSON.", parser=file_path),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File of the broker. Default: everything is in memory.",
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
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to serve the dashboard, the management API and metrics; nowhere by "
            "default.",
            show_default=False,
        ),
    ] = None,
    base_path: BasePath = "",
    definitions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Definitions to import at the start, in RabbitMQ's JSON format.",
            parser=file_path,
        ),
    ] = None,
    log_level: LogLevel = "info",
) -> None:
    """Run the built-in broker for AMQP 0-9-1 clients, until SIGTERM or SIGINT."""
    log_to_stderr(log_level)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            wanted = _wanted(config, data, listen or [], http, base_path, definitions)
            runner.run(_serve(wanted))
    except (
        ConfigError,
        InvalidDefinitionsError,
        StoreError,
        ListenError,
        UnsupportedError,
    ) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _wanted(
    config: Path | None,
    data: str | None,
    listen: list[str],
    http: str | None,
    base_path: str,
    definitions: Path | None,
) -> _Wanted:
    loaded = (
        BrokerConfig.model_validate({"vhosts": {"/": {"name": "/"}}})
        if config is None
        else load_config(config, default_vhost=True)
    )
    addresses = listen or list(loaded.node.listen)
    if not addresses and not has_inherited_sockets():
        addresses = [DEFAULT_ADDRESS]
    http_address = None if http is None else http_address_of(http, "--http")
    document = None if definitions is None else read_definitions(definitions)
    listening = tuple(map(_address, addresses))
    return _Wanted(loaded, data, listening, http_address, base_path, document)


def _address(text: str) -> ListenAddress:
    try:
        return parse_listen_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where the extra ``speed`` is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


# ------------------------------------------------------------------ running


def collect_less() -> None:
    """Have Python search for garbage in few objects at a time, and only in new ones.

    Messages that wait are a great many objects, none of which is garbage, and to look at 10,000
    of them takes a millisecond or more, in which nobody is served. So a search of the first
    generation looks at 1,000, and one of the second at 5,000. All that came since the
    start are searched once in a very long time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 4, 60_000)


async def _recover(node: Node) -> None:
    """Restore the node's messages, which are never searched for garbage."""
    gc.disable()
    try:
        await node.recover()
        gc.freeze()
    finally:
        gc.enable()


async def _serve(wanted: _Wanted) -> None:
    config, data, addresses, _, _, definitions = wanted
    collect_less()
    stop_asked, reload_asked = stop_signals(), _reload_signal()
    node = make_node(
        data or "",
        durable=data is not None,
        settings=engine_settings(config.node),
        scan=scan_settings(config.node),
        event_log=config.node.event_log,
    )
    await _recover(node)
    control = None
    try:
        for vhost in ("/", *config.vhosts):
            node.administration.add_vhost(vhost)
        if node.administration.add_cluster_id():
            await node.drain()
        if definitions is not None:
            for line in lines_of(import_definitions(node, definitions)):
                log.info("definitions: %s", line)
            await node.drain()
        if node.access.add_default_user():
            await node.drain()
        server = Server(node, addresses, config.server, data=data)
        await server.start(inherited=True)
        if data is not None and config.node.control:
            control = await open_control(node, data)
        kept = f"data: {data}" if data else "everything is in memory: nothing is kept"
        async with _management(node, server, wanted) as http_urls:
            where = " ".join([*map(str, server.addresses), *http_urls])
            typer.echo(f"serving {where} ({kept})")
            notify("READY=1", f"STATUS=Serving {where}")
            await _until_stopped(node, server, stop_asked, reload_asked)
    finally:
        if control is not None:
            await control.close()
        await node.close()


@contextlib.asynccontextmanager
async def _management(node: Node, server: Server, wanted: _Wanted) -> AsyncIterator[list[str]]:
    """The management API, where it is wanted; gives its URL.

    It answers until the node is closed: a probe then sees that the node is not ready.
    """
    if wanted.http is None:
        yield []
        return
    try:
        from broker_client.dashboard.api import ManagementApi
        from broker_client.dashboard.application import beside_api
        from broker_client.dashboard.application import make_application as make_pages
        from broker_client.dashboard.dashboard import Dashboard
        from broker_client.server.http.application import as_monitoring, make_application
        from broker_client.server.http.listener import HttpListener
        from broker_client.server.http.management import Management
    except ImportError as error:
        raise UnsupportedError("--http", install_extra("server")) from error
    listening = [(each.scheme, each.host, each.port) for each in server.addresses]
    management = Management(node, server, listening, wanted.data, wanted.config.server)
    api = make_application(management)
    dashboard = Dashboard(
        ManagementApi.in_process(api),
        ManagementApi.in_process(as_monitoring(api, management)),
        connect=server.connect_within,
        base_path=wanted.base_path,
    )
    pages = beside_api(make_pages(dashboard), api)
    listener = HttpListener(management, *wanted.http, pages)
    try:
        await listener.start()
        dashboard.start()
    except ListenError:
        await server.stop()
        raise
    try:
        yield [listener.url]
    finally:
        await dashboard.stop()
        await listener.stop()


async def _until_stopped(
    node: Node, server: Server, stop_asked: asyncio.Queue[str], reload_asked: asyncio.Event
) -> None:
    """Serve until a signal, then stop in order; at once at the second signal.

    Raises:
        StoreError: the node has failed: nobody is served any more.
    """
    reloading = asyncio.create_task(_reload(server, reload_asked), name="serve: reload")
    failed = asyncio.create_task(server.wait_failed(), name="serve: failure")
    asked = asyncio.create_task(stop_asked.get(), name="serve: signal")
    try:
        await asyncio.wait([failed, asked], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reloading, failed, asked):
            task.cancel()
    if node.failure is not None:
        server.abort()
        raise node.failure
    name = asked.result()
    notify("STOPPING=1", f"STATUS=Stopping after {name}")
    stopping = asyncio.create_task(_stop(node, server), name="serve: stop")
    again = asyncio.create_task(stop_asked.get(), name="serve: second signal")
    await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        server.abort()
        node.stop()
        stopping.cancel()
    again.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping


async def _stop(node: Node, server: Server) -> None:
    await server.stop()
    await node.close()


async def _reload(server: Server, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        await server.reload()


def stop_signals() -> asyncio.Queue[str]:
    """Gets the name of each SIGTERM and SIGINT."""
    asked: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.put_nowait, number.name)
    return asked


def _reload_signal() -> asyncio.Event:
    """Set by SIGHUP."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    return asked
