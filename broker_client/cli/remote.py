"""Runs one command on a broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import typer

from broker_client.cli.node_file import failed
from broker_client.cli.where import Place
from broker_client.errors import BrokerClientError, ChannelClosedError, StoreLockedError
from broker_client.transport.base import Link

_LIBRARIES = ("aiormq", "aio_pika")
_INTERRUPTED = 130  # as shells count SIGINT

Result = TypeVar("Result")
_READ_AHEAD = 10_000


def run_on_broker(place: Place, command: Callable[[Link], Awaitable[Result]]) -> Result:
    """What `command` returns for a link to the broker at `place`.

    The link is closed in order, also when the user interrupts the command: what it has
    acknowledged stays so, and what it holds goes back to its queue.

    Raises:
        typer.Exit: with status 1, once it was said what is wrong; 130 after an interrupt.
    """
    silence_libraries()
    try:
        return asyncio.run(_run(place, command))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except StoreLockedError as error:
        raise failed(f"{error}; its process has no control socket") from None
    except ChannelClosedError as error:
        raise failed(f"{place.shown}: {error.reply_code or ''} {error.reply_text}") from None
    except BrokerClientError as error:
        raise failed(str(error)) from None


def silence_libraries() -> None:
    """What they log is raised, too: a command reports it once."""
    for library in _LIBRARIES:
        logging.getLogger(library).addHandler(logging.NullHandler())


async def _run(place: Place, command: Callable[[Link], Awaitable[Result]]) -> Result:
    async with place.link() as link:
        return await command(link)


async def read_ahead(source: Iterator[Result], most: int) -> AsyncIterator[list[Result]]:
    """The items of `source`, in lists of those available, `most` at most.

    It is read in a thread, which may wait for a terminal or a pipe while the link stays alive.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Result | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(_READ_AHEAD)

    def put(item: Result | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the command was interrupted
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def read() -> None:
        try:
            for item in source:
                room.acquire()
                put(item)
        except BaseException as error:  # noqa: BLE001 - raised again where it is read
            put(error)
        else:
            put(None)

    # A daemon: an interrupt must not wait for the next line.
    threading.Thread(target=read, name="read ahead", daemon=True).start()
    is_open = True
    while is_open:
        items: list[Result] = []
        failure: BaseException | None = None
        while not items or (len(items) < most and not arrived.empty()):
            item = await arrived.get()
            if item is None or isinstance(item, BaseException):
                is_open, failure = False, item
                break
            room.release()
            items.append(item)
        if items:
            yield items
        if failure is not None:
            raise failure
