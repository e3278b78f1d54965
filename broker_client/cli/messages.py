"""``broker-client publish``, ``get``, ``peek`` and ``purge``, on a URL."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from broker_client.cli.node_file import failed
from broker_client.cli.options import AsJson, Count, Queue, Yes
from broker_client.cli.progress import Progress
from broker_client.cli.remote import read_ahead, run_on_broker
from broker_client.cli.where import ConfigFile, Url, VhostName, place_of
from broker_client.message import PERSISTENT, Delivery, Outgoing, Properties
from broker_client.moving.confirms import ConfirmedPublisher
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Link

_BATCH = 200
_WINDOW = 1_000  # messages that are published and not confirmed
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


# --------------------------------------------------------------------------- publish


def publish(
    routing_key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Routing key; without --exchange, the name of a queue."),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Files with message bodies. Default: the lines of standard input.",
        ),
    ] = None,
    exchange: Annotated[
        str, typer.Option(help="Exchange to publish to. Default: the default exchange.")
    ] = "",
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help="Each line is JSON with body and optionally headers, routing_key, properties.",
        ),
    ] = False,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    as_json: AsJson = False,
) -> None:
    """Publish persistent messages with confirms: one for each file or line of standard input.

    Exits with status 1 if the broker refused a message or no queue took it.
    """
    place = place_of(url, config, vhost)
    source = _file_messages(files, exchange, routing_key) if files else None
    if source is None:
        source = _line_messages(sys.stdin.buffer, exchange, routing_key, json_lines=json_lines)

    done = _Published(Progress("confirmed", len(files) if files else None))

    async def command(link: Link) -> None:
        publisher = await ConfirmedPublisher.open(link, done.settled)
        try:
            async for batch in read_ahead(source, _BATCH):
                await publisher.publish(list(enumerate(batch, done.published + 1)))
                done.published += len(batch)
                await publisher.wait(_WINDOW - _BATCH)
        finally:
            await publisher.wait()  # so that the count is right, also after an interrupt

    try:
        run_on_broker(place, command)
    finally:
        done.progress.end()
        if as_json:
            typer.echo(json.dumps({"confirmed": done.confirmed, "refused": done.refused}))
        else:
            more = f", {done.refused:,} refused" if done.refused else ""
            typer.echo(f"{done.confirmed:,} confirmed{more}")
    if done.refused:
        raise typer.Exit(1)


@slotted(frozen=False)
class _Published:
    progress: Progress
    published: int = 0
    confirmed: int = 0
    refused: int = 0

    def settled(self, number: int, why: str) -> None:
        if why:
            self.progress.end()
            typer.echo(f"message {number}: {why}", err=True)
            self.refused += 1
        else:
            self.confirmed += 1
        self.progress.show(self.confirmed)


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
        raise wrong(f"is not JSON: {error}") from None
    if not isinstance(given, dict) or not {"body", "body_base64"} & set(given):
        raise wrong("is not an object with a body")
    if unknown := sorted(set(given) - _JSON_KEYS):
        raise wrong(f"{unknown[0]!r} is not one of {', '.join(sorted(_JSON_KEYS))}")
    properties = given.get("properties", {})
    headers = given.get("headers")
    if not isinstance(properties, dict) or not isinstance(headers, dict | None):
        raise wrong("headers and properties are objects")
    for name, value in properties.items():
        if name not in _TEXT_PROPERTIES or not isinstance(value, str):
            raise wrong(
                f"property {name!r} is not one of {', '.join(_TEXT_PROPERTIES)}, or not text"
            )
    if "body_base64" in given:
        try:
            body = base64.b64decode(given["body_base64"], validate=True)
        except (TypeError, ValueError):
            raise wrong("body_base64 is not base64") from None
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


def get(
    queue: Queue,
    count: Count = 1,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    as_json: AsJson = False,
) -> None:
    """Take messages out of a queue and print them."""
    place = place_of(url, config, vhost)

    async def command(link: Link) -> int:
        channel = await link.open_channel()
        taken = 0
        while taken < count and (delivery := await channel.get(queue)) is not None:
            print_delivery(delivery, as_json=as_json)
            sys.stdout.flush()
            channel.ack(delivery.delivery_tag)  # printed first: nothing is lost in between
            taken += 1
        await channel.close()
        return taken

    if not run_on_broker(place, command):
        typer.echo(f"{queue} is empty", err=True)


def peek(
    queue: Queue,
    count: Count = 10,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    as_json: AsJson = False,
) -> None:
    """Print messages and leave them in the queue, marked as redelivered."""
    place = place_of(url, config, vhost)

    async def command(link: Link) -> int:
        channel = await link.open_channel()
        held: list[int] = []
        while len(held) < count and (delivery := await channel.get(queue)) is not None:
            held.append(delivery.delivery_tag)
            print_delivery(delivery, as_json=as_json)
        for tag in held:
            channel.release(tag)
        await channel.close()
        return len(held)

    if not run_on_broker(place, command):
        typer.echo(f"{queue} is empty", err=True)


def purge(
    queue: Queue,
    yes: Yes = False,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    as_json: AsJson = False,
) -> None:
    """Drop the ready messages of a queue."""
    place = place_of(url, config, vhost)

    async def count_ready(link: Link) -> int:
        return (await (await link.open_channel()).check_queue(queue)).message_count

    async def command(link: Link) -> int:
        return await (await link.open_channel()).purge_queue(queue)

    if not yes:
        ready = run_on_broker(place, count_ready)
        typer.confirm(f"Drop all messages of {queue!r}, {ready:,} now?", abort=True)
    count = run_on_broker(place, command)
    typer.echo(json.dumps({"purged": count}) if as_json else f"{count:,} dropped")


def print_delivery(delivery: Delivery, *, as_json: bool) -> None:
    """Print one message, without control sequences for the terminal."""
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
    """`text` without control sequences for a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
