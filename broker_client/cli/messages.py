"""``broker-client publish``, ``get``, ``peek``, ``purge``, ``move`` and ``replay``, on a URL."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from broker_client.amqp.x_death import deaths, without_deaths
from broker_client.cli.moving import BATCH, ConfirmedPublisher, Moved, move
from broker_client.cli.node_file import failed
from broker_client.cli.remote import Url, read_ahead, run_on_broker
from broker_client.message import (
    PERSISTENT,
    Delivery,
    Headers,
    Outgoing,
    Properties,
    with_original_user,
)
from broker_client.transport.base import Link

_BATCH = 500
_MANY = 10_000  # messages between two lines of progress
_JSON_KEYS = frozenset(("body", "headers", "routing_key", "properties", "body_base64"))
_TEXT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "app_id",
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print lines of JSON.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Messages at most.")]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Messages at most.", show_default=False)
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", min=0.1, help="Messages a second at most.", show_default=False),
]


# --------------------------------------------------------------------------- publish


def publish(
    url: Url,
    routing_key: Annotated[
        str, typer.Argument(metavar="KEY", help="Routing key: without --exchange, a queue.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Bodies; without one, lines of standard input."),
    ] = None,
    exchange: Annotated[str, typer.Option(help="Where to; the default exchange if left out.")] = "",
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help="Each line is JSON with body, and if need be headers, routing_key, properties.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish persistent messages, confirmed: a file each, or a line of standard input each.

    Ends with status 1 if the broker refused one, or no queue takes it.
    """
    source = _file_messages(files, exchange, routing_key) if files else None
    if source is None:
        source = _line_messages(sys.stdin.buffer, exchange, routing_key, json_lines=json_lines)

    done = _Published()

    async def command(link: Link) -> None:
        publisher = ConfirmedPublisher(await link.open_channel(confirm=True))
        async for batch in read_ahead(source, _BATCH):
            reasons = await publisher.publish(batch)
            for at, why in sorted(reasons.items()):
                number = done.confirmed + done.refused + at + 1
                typer.echo(f"message {number}: {why}", err=True)
            done.confirmed += len(batch) - len(reasons)
            done.refused += len(reasons)

    try:
        run_on_broker(url, command)
    finally:
        if as_json:
            typer.echo(json.dumps({"confirmed": done.confirmed, "refused": done.refused}))
        else:
            more = f", {done.refused:,} refused" if done.refused else ""
            typer.echo(f"{done.confirmed:,} confirmed{more}")
    if done.refused:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Published:
    confirmed: int = 0
    refused: int = 0


def _message(exchange: str, routing_key: str, body: bytes, **properties: Any) -> Outgoing:
    properties = {"message_id": str(uuid4()), "timestamp": datetime.now(UTC), **properties}
    kept = Properties(delivery_mode=PERSISTENT, **properties)
    return Outgoing(exchange, routing_key, body, kept, mandatory=True)


def _file_messages(files: list[Path], exchange: str, routing_key: str) -> Iterator[Outgoing]:
    for path in files:
        try:
            body = path.read_bytes()
        except OSError as error:
            raise failed(f"{path}: {error.strerror}") from None
        yield _message(exchange, routing_key, body)


def _line_messages(
    lines: Any, exchange: str, routing_key: str, *, json_lines: bool
) -> Iterator[Outgoing]:
    for number, line in enumerate(lines, 1):
        body = line.rstrip(b"\r\n")
        if not json_lines:
            yield _message(exchange, routing_key, body)
        elif body:
            yield _json_message(number, body, exchange, routing_key)


def _json_message(number: int, line: bytes, exchange: str, routing_key: str) -> Outgoing:
    def wrong(why: str) -> typer.Exit:
        return failed(f"line {number}: {why}")

    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise wrong(f"is no JSON: {error}") from None
    if not isinstance(given, dict) or not {"body", "body_base64"} & set(given):
        raise wrong("is no object with a body")
    if unknown := sorted(set(given) - _JSON_KEYS):
        raise wrong(f"{unknown[0]!r} is none of {', '.join(sorted(_JSON_KEYS))}")
    properties = given.get("properties", {})
    headers = given.get("headers")
    if not isinstance(properties, dict) or not isinstance(headers, dict | None):
        raise wrong("headers and properties are objects")
    for name, value in properties.items():
        if name not in _TEXT_PROPERTIES or not isinstance(value, str):
            raise wrong(f"property {name!r} is none of {', '.join(_TEXT_PROPERTIES)}, or no text")
    if "body_base64" in given:
        try:
            body = base64.b64decode(given["body_base64"], validate=True)
        except (TypeError, ValueError):
            raise wrong("body_base64 is no base64") from None
    else:
        content = given["body"]
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        if not isinstance(content, str):
            properties = {"content_type": "application/json", **properties}
    key = given.get("routing_key", routing_key)
    if not isinstance(key, str):
        raise wrong("routing_key is text")
    return _message(exchange, key, body, headers=headers, **properties)


# --------------------------------------------------------------------------- get, peek, purge


def get(url: Url, queue: Queue, count: Count = 1, as_json: AsJson = False) -> None:
    """Take messages out of a queue and print them."""

    async def command(link: Link) -> int:
        channel = await link.open_channel()
        taken = 0
        while taken < count and (delivery := await channel.get(queue)) is not None:
            _print(delivery, as_json=as_json)
            sys.stdout.flush()
            channel.ack(delivery.delivery_tag)  # printed first: nothing is lost in between
            taken += 1
        await channel.close()
        return taken

    if not run_on_broker(url, command):
        typer.echo(f"{queue} is empty", err=True)


def peek(url: Url, queue: Queue, count: Count = 10, as_json: AsJson = False) -> None:
    """Print messages and leave them in the queue, where they count as redelivered."""

    async def command(link: Link) -> int:
        channel = await link.open_channel()
        held: list[int] = []
        while len(held) < count and (delivery := await channel.get(queue)) is not None:
            held.append(delivery.delivery_tag)
            _print(delivery, as_json=as_json)
        for tag in held:
            channel.release(tag)
        await channel.close()
        return len(held)

    if not run_on_broker(url, command):
        typer.echo(f"{queue} is empty", err=True)


def purge(
    url: Url,
    queue: Queue,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop all messages of a queue that are ready."""
    if not yes:
        typer.confirm(f"Drop all messages of {queue!r}?", abort=True)

    async def command(link: Link) -> int:
        return await (await link.open_channel()).purge_queue(queue)

    count = run_on_broker(url, command)
    typer.echo(json.dumps({"purged": count}) if as_json else f"{count:,} dropped")


def _print(delivery: Delivery, *, as_json: bool) -> None:
    properties = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in delivery.properties._asdict().items()
        if value is not None
    }
    try:
        body = {"body": delivery.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(delivery.body).decode()}
    shown = {
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "redelivered": delivery.redelivered,
        "properties": properties,
        **body,
    }
    if as_json:
        typer.echo(json.dumps(shown, default=str))
        return
    typer.echo(f"{delivery.exchange or '(default)'} {delivery.routing_key}")
    for name, value in properties.items():
        typer.echo(f"  {name}: {_printable(json.dumps(value, default=str, ensure_ascii=False))}")
    typer.echo(_printable(next(iter(body.values()))))
    typer.echo()


def _printable(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


# --------------------------------------------------------------------------- move, replay


def move_messages(
    url: Url,
    queue: Queue,
    to: Annotated[str, typer.Argument(metavar="TO", help="Name of the queue that gets them.")],
    limit: Limit = None,
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Move the ready messages of a queue to another: each copy is confirmed, then its original
    acknowledged.

    Ends with status 1 if a copy was refused; its original stays where it was.
    """
    if to == queue:
        raise failed("a queue cannot be moved to itself")

    def copy_of(delivery: Delivery) -> Outgoing | None:
        return _copy(delivery, to, delivery.properties.headers)

    async def command(link: Link) -> Moved:
        return await move(link, queue, copy_of, most=limit, rate=rate, progress=_progress)

    _tell(run_on_broker(url, command), as_json=as_json)


def replay(
    url: Url,
    queue: Queue,
    reason: Annotated[
        str | None, typer.Option(help="Only those that died for it.", show_default=False)
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="QUEUE", help="Only those from it.", show_default=False),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Only those dead for longer.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only those with this header; may be repeated."),
    ] = None,
    limit: Limit = None,
    rate: Rate = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it, instead of counting.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue where they died.

    Without --yes, only count them, by queue and reason. Each copy is confirmed, then its original
    acknowledged. It has the message id of the original, and none of the headers about its death.
    """
    wanted = [_pair(each) for each in header or []]
    now = datetime.now(UTC)
    groups: Counter[tuple[str, str]] = Counter()

    def copy_of(delivery: Delivery) -> Outgoing | None:
        headers = delivery.properties.headers or {}
        death = next(iter(deaths(headers)), None)
        if death is None or not isinstance(death.get("queue"), str):
            return None
        died_at = death.get("time")
        if (
            (reason is not None and death.get("reason") != reason)
            or (origin is not None and death["queue"] != origin)
            or any(str(headers.get(name)) != value for name, value in wanted)
            or (
                older_than is not None
                and not (
                    isinstance(died_at, datetime) and now - died_at > timedelta(seconds=older_than)
                )
            )
        ):
            return None
        if limit is None or groups.total() < limit:
            groups[death["queue"], str(death.get("reason"))] += 1
        return _copy(delivery, death["queue"], without_deaths(headers)) if yes else None

    async def command(link: Link) -> Moved:
        return await move(link, queue, copy_of, most=limit, rate=rate, progress=_progress)

    moved = run_on_broker(url, command)
    if yes:
        _tell(moved, as_json=as_json)
        return
    found = [{"queue": q, "reason": r, "count": n} for (q, r), n in sorted(groups.items())]
    if as_json:
        typer.echo(json.dumps({"seen": moved.seen, "would_replay": found}))
        return
    for each in found:
        typer.echo(f"{each['count']:>9,}  {each['reason']}  from {each['queue']}")
    typer.echo(f"{moved.seen:,} seen, {sum(groups.values()):,} would be replayed; --yes does it")


def _copy(delivery: Delivery, queue: str, headers: Headers | None) -> Outgoing | None:
    """A copy of `delivery` for `queue` alone; None where its properties cannot be read."""
    if delivery.fault:
        return None
    # CC would send the copy to further queues, which had theirs the first time.
    kept = {name: value for name, value in (headers or {}).items() if name != "CC"}
    properties = delivery.properties._replace(headers=kept or None)
    return Outgoing("", queue, delivery.body, with_original_user(properties), mandatory=True)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value


def _progress(moved: Moved) -> None:
    """On a terminal one line that is written over, else a line now and then."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{moved.moved:,} moved\r")
        sys.stderr.flush()
    elif moved.moved and moved.moved // _MANY > (moved.moved - BATCH) // _MANY:
        typer.echo(f"{moved.moved:,} moved", err=True)


def _tell(moved: Moved, *, as_json: bool) -> None:
    for why, count in Counter(moved.refused).items():
        typer.echo(f"{count:,} stay where they are: {why}", err=True)
    left = moved.seen - moved.moved - len(moved.refused)
    if as_json:
        told = {
            "seen": moved.seen,
            "moved": moved.moved,
            "refused": len(moved.refused),
            "left": left,
        }
        typer.echo(json.dumps(told))
    else:
        typer.echo(f"{moved.moved:,} moved" + (f", {left:,} left as they were" if left else ""))
    if moved.refused:
        raise typer.Exit(1)
