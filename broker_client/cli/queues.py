"""``broker-client queues``, ``top``, ``pause`` and ``resume``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker_client.cli.node_file import failed
from broker_client.cli.options import AsJson, Queue
from broker_client.cli.steering import ByFile, Management, QueueRow, Steering, steering_of
from broker_client.cli.where import ConfigFile, Url, VhostName
from broker_client.runtime.slotted import slotted


@slotted
class QueueRates:
    """Messages a second since the last look."""

    published: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0


_COLUMNS: dict[str, Callable[[QueueRow, QueueRates], object]] = {
    "name": lambda row, rates: (row.vhost, row.name),
    "ready": lambda row, rates: row.ready,
    "in-flight": lambda row, rates: row.in_flight,
    "deferred": lambda row, rates: row.deferred or 0,
    "consumers": lambda row, rates: row.consumers,
    "oldest": lambda row, rates: row.oldest or 0.0,
    "in": lambda row, rates: rates.published,
    "out": lambda row, rates: rates.delivered,
    "dead": lambda row, rates: row.dead_letters or 0,
}
_KEYS = {
    "n": "name",
    "r": "ready",
    "f": "in-flight",
    "d": "deferred",
    "c": "consumers",
    "o": "oldest",
    "i": "in",
    "u": "out",
    "x": "dead",
}
_HELP = "sort: n name  r ready  f in flight  d deferred  c consumers  o oldest  i in  u out  x dead"

Sort = Annotated[
    str, typer.Option(help=f"Column to sort by, largest first: {', '.join(_COLUMNS)}.")
]


def queues(
    sort: Sort = "name",
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """List the queues of a broker with their messages and consumers."""
    _check_sort(sort)
    rows = _sorted(
        [(row, QueueRates()) for row in steering_of(url, config, vhost, management).queues()], sort
    )
    if as_json:
        for row, _ in rows:
            typer.echo(json.dumps(asdict(row)))
        return
    Console(file=sys.stdout).print(_table(rows, with_rates=False))


def top(
    sort: Sort = "ready",
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 2.0,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Number of updates. Default: until q."),
    ] = None,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """List the queues live; keys change the order, q quits."""
    _check_sort(sort)
    steering = steering_of(url, config, vhost, management)
    if isinstance(steering, ByFile) and not steering.is_running:
        raise failed("no process has the file open; use broker-client queues")
    looks = _looks(steering.queues)
    try:
        if as_json or not sys.stdout.isatty():
            _print_looks(looks, sort, interval, count, as_json=as_json)
        else:
            _live(looks, sort, interval, count)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def pause(
    queue: Queue,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """Stop the deliveries of a queue of the built-in broker until it is resumed."""
    _set_paused(steering_of(url, config, vhost, management), queue, True, as_json=as_json)


def resume(
    queue: Queue,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """Resume the deliveries of a paused queue."""
    _set_paused(steering_of(url, config, vhost, management), queue, False, as_json=as_json)


def _set_paused(steering: Steering, queue: str, paused: bool, *, as_json: bool) -> None:
    steering.set_paused(steering.vhost or "/", queue, paused=paused)
    now = "paused" if paused else "resumed"
    typer.echo(json.dumps({now: queue}) if as_json else f"{queue} is {now}")


# --------------------------------------------------------------------------- within

_Rated = list[tuple[QueueRow, QueueRates]]


def _check_sort(sort: str) -> None:
    if sort not in _COLUMNS:
        raise typer.BadParameter(f"one of {', '.join(_COLUMNS)}", param_hint="--sort")


def _sorted(rows: _Rated, sort: str) -> _Rated:
    key = _COLUMNS[sort]
    by_name = sorted(rows, key=lambda each: (each[0].vhost, each[0].name))
    if sort == "name":
        return by_name
    return sorted(by_name, key=lambda each: key(*each), reverse=True)  # type: ignore[arg-type, return-value]


def _looks(queues: Callable[[], list[QueueRow]]) -> Iterator[_Rated]:
    """The queues now, each time that it is asked, with their rates since the last time."""
    before: dict[tuple[str, str], QueueRow] = {}
    then = time.monotonic()
    while True:
        rows, now = queues(), time.monotonic()
        seconds = max(0.001, now - then)
        yield [(row, _rates(before.get((row.vhost, row.name)), row, seconds)) for row in rows]
        before, then = {(row.vhost, row.name): row for row in rows}, now


def _rates(before: QueueRow | None, now: QueueRow, seconds: float) -> QueueRates:
    if before is None:
        return QueueRates()

    def rate(then: int, later: int) -> float:
        return max(0, later - then) / seconds  # below 0 it was declared again

    return QueueRates(
        rate(before.published, now.published),
        rate(before.delivered, now.delivered),
        rate(before.acked, now.acked),
    )


def _print_looks(
    looks: Iterator[_Rated], sort: str, interval: float, count: int | None, *, as_json: bool
) -> None:
    for number, rows in enumerate(looks, 1):
        ordered = _sorted(rows, sort)
        if as_json:
            found = [{**asdict(row), "rates": asdict(rates)} for row, rates in ordered]
            typer.echo(json.dumps({"time": time.time(), "queues": found}))
        else:
            Console(file=sys.stdout).print(_table(ordered, with_rates=True))
        sys.stdout.flush()
        if number == count:
            return
        time.sleep(interval)


def _live(looks: Iterator[_Rated], sort: str, interval: float, count: int | None) -> None:
    console = Console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        for number, rows in enumerate(looks, 1):
            until = time.monotonic() + interval
            while True:
                live.update(_fitted(rows, sort, console.size.height), refresh=True)
                key = pressed(until - time.monotonic())
                if key == "q":
                    return
                if key in _KEYS:
                    sort = _KEYS[key]
                elif not key:
                    break
            if number == count:
                return


def _fitted(rows: _Rated, sort: str, height: int) -> Table:
    """As many rows as fit on the terminal."""
    room = max(1, height - 6)
    table = _table(_sorted(rows, sort)[:room], with_rates=True)
    hidden = f", {len(rows) - room} not shown" if len(rows) > room else ""
    table.title = f"{len(rows)} queues by {sort}{hidden}"
    table.caption = f"{_HELP}  q end"
    return table


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits a number of seconds for a key; "" if none was pressed."""
    import termios
    import tty

    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(max(0.0, seconds))
            return ""

        yield wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], max(0.0, seconds))
        return os.read(terminal, 1).decode("ascii", "replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _table(rows: _Rated, *, with_rates: bool) -> Table:
    """Without the vhost where there is only one, and what the broker does not report."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    with_vhost = len({row.vhost for row, _ in rows}) > 1
    with_deferred = any(row.deferred is not None for row, _ in rows)
    with_dead = any(row.dead_letters is not None for row, _ in rows)
    for column in ("vhost", "queue")[not with_vhost :]:
        table.add_column(column, overflow="fold")
    # Headings of two lines leave room for the names of queues.
    numbers = ["ready", "in\nflight", *(["deferred"] if with_deferred else [])]
    numbers += ["con-\nsumers", "oldest"]
    numbers += ["in/s", "out/s", "ack/s"] if with_rates else ["pub-\nlished"]
    for column in (*numbers, *(["dead"] if with_dead else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for row, rates in rows:
        name = Text(row.name)
        if row.state != "running":
            name.append(f" ({row.state})", style="yellow")
        shown: list[str | Text] = [Text(row.vhost)] if with_vhost else []
        shown += [name, f"{row.ready:,}", f"{row.in_flight:,}"]
        if with_deferred:
            shown.append(_known(row.deferred))
        shown.append(Text(f"{row.consumers:,}", "red" if row.ready and not row.consumers else ""))
        shown.append(_age(row.oldest))
        if with_rates:
            shown += [f"{each:,.0f}" for each in (rates.published, rates.delivered, rates.acked)]
        else:
            shown.append(f"{row.published:,}")
        if with_dead:
            shown.append(_known(row.dead_letters))
        table.add_row(*shown)
    return table


def _known(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
