"""``broker-client move`` and ``replay``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from broker_client.cli.node_file import failed
from broker_client.cli.options import AsJson, Limit, Queue, Rate
from broker_client.cli.progress import Progress
from broker_client.cli.remote import run_on_broker
from broker_client.cli.where import ConfigFile, Place, Url, VhostName, place_of
from broker_client.moving.move import MoveOptions, MoveProgress, move, replay
from broker_client.moving.selection import Selection
from broker_client.transport.base import Link

Reason = Annotated[
    str | None,
    typer.Option(
        help="Only deaths for this reason: rejected, expired, maxlen or delivery_limit.",
        show_default=False,
    ),
]
Origin = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="QUEUE", help="Only messages that died in this queue.", show_default=False
    ),
]
OlderThan = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Only messages that died, or else were published, longer ago than this.",
        show_default=False,
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Only messages with this header. May be repeated."),
]
MessageId = Annotated[
    list[str] | None,
    typer.Option(
        "--message-id", metavar="ID", help="Only the message with this id. May be repeated."
    ),
]
CheckTarget = Annotated[
    bool,
    typer.Option(
        "--check-target/--no-check-target",
        help="Search the target for copies of an earlier, interrupted move.",
    ),
]


def move_messages(
    queue: Queue,
    to: Annotated[str, typer.Argument(metavar="TO", help="Queue to move the messages to.")],
    reason: Reason = None,
    origin: Origin = None,
    older_than: OlderThan = None,
    header: Header = None,
    message_id: MessageId = None,
    limit: Limit = None,
    rate: Rate = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    check_target: CheckTarget = True,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    as_json: AsJson = False,
) -> None:
    """Move messages to another queue; each copy is confirmed before its original is acked.

    Exits with status 1 if a copy was refused; its original stays where it was.
    """
    if to == queue:
        raise failed("a queue cannot be moved to itself")
    selection = _selection(reason, origin, older_than, header, message_id)
    report = _Report(as_json, dry_run, "move")

    async def command(link: Link) -> MoveProgress:
        options = MoveOptions(selection, limit, rate, check_target, report.progress)
        return await move(link, queue, to, options, dry_run=dry_run)

    report.run(place_of(url, config, vhost), command)


def replay_messages(
    queue: Queue,
    reason: Reason = None,
    origin: Origin = None,
    older_than: OlderThan = None,
    header: Header = None,
    message_id: MessageId = None,
    limit: Limit = None,
    rate: Rate = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Replay the messages instead of counting them.")
    ] = False,
    check_target: CheckTarget = True,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    as_json: AsJson = False,
) -> None:
    """Move dead letters back to the queues where they died; without --yes, only count them.

    Each copy is confirmed before its original is acked. It keeps the message id of the original,
    but not the headers about its death.
    """
    selection = _selection(reason, origin, older_than, header, message_id)
    report = _Report(as_json, not yes, "replay")

    async def command(link: Link) -> MoveProgress:
        options = MoveOptions(selection, limit, rate, check_target, report.progress)
        return await replay(link, queue, options, dry_run=not yes)

    report.run(place_of(url, config, vhost), command)


def _selection(
    reason: str | None,
    origin: str | None,
    older_than: float | None,
    headers: list[str] | None,
    message_ids: list[str] | None,
) -> Selection:
    wanted = dict(_pair(each) for each in headers or [])
    return Selection(reason, origin, older_than, wanted, frozenset(message_ids or ()))


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value


class _Report:
    """Reports on one move while it runs, and at its end."""

    def __init__(self, as_json: bool, is_dry: bool, verb: str) -> None:
        self._as_json, self._is_dry, self._verb = as_json, is_dry, verb
        self._line = Progress("seen" if is_dry else "moved")
        self._moved = MoveProgress()

    def progress(self, moved: MoveProgress) -> None:
        """To be called after every batch."""
        self._moved = moved
        note = f"blocked by the broker: {moved.blocked}" if moved.blocked else ""
        self._line.show(moved.seen if self._is_dry else moved.moved, note)

    def run(self, place: Place, command: Callable[[Link], Awaitable[MoveProgress]]) -> None:
        """Carry out `command`, and report its result.

        Raises:
            typer.Exit: with status 1 if it failed, or a copy was refused.
        """
        try:
            run_on_broker(place, command)
        except typer.Exit:
            self._line.end()
            self._tell_cut_off()
            raise
        self._line.end()
        if self._is_dry:
            self._tell_selected()
        else:
            self._tell_moved()

    def _tell_cut_off(self) -> None:
        moved = self._moved
        if moved.moved or moved.unconfirmed:
            text = f"{moved.moved:,} moved"
            if moved.unconfirmed:
                text += f"; {moved.unconfirmed:,} may be in both queues: run it again"
            typer.echo(text, err=True)

    def _tell_selected(self) -> None:
        moved, verb = self._moved, self._verb
        groups = sorted(moved.selected.items())
        if self._as_json:
            found = [{"queue": q, "reason": reason, "count": n} for (q, reason), n in groups]
            typer.echo(json.dumps({"seen": moved.seen, f"would_{verb}": found}))
            return
        for (queue, reason), count in groups:
            direction = f"from {queue}" if verb == "replay" else f"to {queue}"
            typer.echo(f"{count:>9,}  {reason or '-'}  {direction}")
        total = sum(moved.selected.values())
        hint = "; --yes does it" if verb == "replay" else ""
        typer.echo(f"{moved.seen:,} seen, {total:,} would be {verb.rstrip('e')}ed{hint}")

    def _tell_moved(self) -> None:
        moved = self._moved
        for why, count in moved.refused.items():
            typer.echo(f"{count:,} stay where they are: {why}", err=True)
        for queue in sorted(moved.not_looked_through):
            typer.echo(
                f"{queue} has too many messages to look for copies of an earlier move", err=True
            )
        if self._as_json:
            told = {
                "seen": moved.seen,
                "moved": moved.moved,
                "already_moved": moved.already_moved,
                "refused": moved.refused.total(),
                "left": moved.kept,
            }
            typer.echo(json.dumps(told))
        else:
            parts = [f"{moved.moved:,} moved"]
            if moved.already_moved:
                parts.append(f"{moved.already_moved:,} were moved before")
            if moved.kept:
                parts.append(f"{moved.kept:,} left as they were")
            typer.echo(", ".join(parts))
        if moved.refused:
            raise typer.Exit(1)
