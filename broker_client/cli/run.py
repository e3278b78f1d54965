"""``broker-client run``: a program made of handlers."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from broker_client.broker import Broker
from broker_client.cli.logs import LogLevel, log_to_stderr
from broker_client.cli.program import NoProgramError, find_program, make_program
from broker_client.cli.supervisor import SUPERVISOR_FD, Supervisor
from broker_client.errors import BrokerClientError, install_extra
from broker_client.router import Router

log: logging.Logger = logging.getLogger("broker_client.run")


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A Router with a configuration, such as app:router; what Broker.create returns; "
            "or a function that returns one of them, or an open Broker.",
            show_default=False,
        ),
    ],
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, help="Number of processes.")
    ] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart whenever a file in this folder changes.")
    ] = False,
    log_level: LogLevel = "info",
) -> None:
    """Run the handlers of a program until SIGTERM or SIGINT, then shut down gracefully.

    A second signal ends the program at once. With --workers, SIGHUP restarts all workers.
    """
    log_to_stderr(log_level)
    if reload and importlib.util.find_spec("watchfiles") is None:
        typer.echo(f"--reload needs watchfiles: {install_extra('reload')}", err=True)
        raise typer.Exit(1)
    if workers > 1 or reload:
        command = ["-m", "broker_client", "run", target, "--log-level", log_level]
        folder = Path.cwd() if reload else None
        raise typer.Exit(asyncio.run(_supervise(command, workers, folder)))
    if SUPERVISOR_FD in os.environ:  # a terminal sends these to the workers, too
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    try:
        found = find_program(target)
        asyncio.run(_run(target, found))
    except (BrokerClientError, NoProgramError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


async def _supervise(command: list[str], workers: int, folder: Path | None) -> int:
    return await Supervisor(command, workers, folder).run()


async def _run(target: str, found: object) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    supervisor = os.environ.pop(SUPERVISOR_FD, None)
    signals = [signal.SIGTERM] if supervisor is not None else [signal.SIGTERM, signal.SIGINT]

    def end() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once

    for number in signals:
        loop.add_signal_handler(number, end)
    if supervisor is not None:

        def supervisor_gone() -> None:  # only then is its pipe readable
            loop.remove_reader(int(supervisor))
            stop.set()

        loop.add_reader(int(supervisor), supervisor_gone)
    started = await _started(target, found, stop)
    if started is None:
        return
    broker, router = started
    try:
        broker.on("error", lambda error, vhost: log.error("vhost %s: %s", vhost, error))
        if router is not None:
            broker.include(router)
        log.info("running %d subscriptions", len(broker.subscriptions))
        await stop.wait()
        log.info("ending")
    finally:
        await broker.shutdown()


async def _started(
    target: str, found: object, stop: asyncio.Event
) -> tuple[Broker, Router | None] | None:
    """A connected Broker and what to include; None if `stop` is set before there is one."""

    async def start() -> tuple[Broker, Router | None]:
        program = await make_program(target, found)
        if isinstance(program, Broker):
            return program, None
        assert program.config is not None, "make_program refuses one without"
        return await Broker.create(program.config), program

    starting = asyncio.create_task(start(), name="run: start")
    stopped = asyncio.create_task(stop.wait(), name="run: stop")
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        log.info("ending before the broker answered")
        starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled():
            return None
    return await starting
