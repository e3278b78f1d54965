"""Carries out a plan. Never deletes what holds messages or is in use."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence

from broker_client.config import VhostConfig
from broker_client.connection.topology import Topology
from broker_client.errors import ChannelClosedError
from broker_client.planning.inventory import Inventory, ListedBinding
from broker_client.planning.plan import Change
from broker_client.transport.base import Channel, Link

_CLASSIC = "classic"

Step = Callable[[Channel], Awaitable[object]]


async def apply_plan(
    link: Link,
    config: VhostConfig,
    inventory: Inventory,
    changes: Iterable[Change],
    *,
    replace: bool = False,
    prune: bool = False,
) -> list[str]:
    """Make the broker as configured; returns what was refused, and why.

    Args:
        link: to the broker.
        config: of the vhost.
        inventory: what is there.
        changes: the plan.
        replace: delete what differs, unless it is in use, and declare it again. Bindings that it
            had are made again, too.
        prune: delete what is left, unless it is in use.

    Raises:
        TransportError: the link failed; what was done before stays.
    """
    todo = list(changes)
    applying = _Applying(link)
    differing = [change for change in todo if change.action == "differs"]
    replaced = [c for c in differing if await applying.delete(c)] if replace else []
    topology = Topology(config)
    errors = await topology.establish(link, purge=False, part="shared", lenient=True)
    applying.refused += map(str, errors)
    subjects = {change.subject for change in replaced}
    for binding in sorted(inventory.bindings):
        if subjects.intersection(binding.ends):
            await applying.bind(binding)
    if prune:
        for change in todo:
            if change.action == "left":
                await applying.delete(change)
    return applying.refused


class _Applying:
    """Steps on channels of their own: a refusal closes its channel."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.refused: list[str] = []

    async def delete(self, change: Change) -> bool:
        subject = change.subject
        if isinstance(subject, ListedBinding):
            return await self._carried_out(change, lambda channel: _unbind(channel, subject))
        if change.kind == "exchange":
            # One that is replaced gets its bindings back.
            unused = change.action == "left"
            return await self._carried_out(
                change, lambda channel: channel.delete_exchange(change.name, if_unused=unused)
            )
        return await self._carried_out(change, lambda channel: _delete_queue(channel, change))

    async def bind(self, binding: ListedBinding) -> bool:
        arguments = json.loads(binding.arguments)
        ends = binding.destination, binding.source

        async def bind(channel: Channel) -> None:
            to_queue = binding.destination_kind == "queue"
            method = channel.bind_queue if to_queue else channel.bind_exchange
            await method(*ends, binding.key, arguments)

        return await self._run(f"binding {binding}", bind)

    async def _carried_out(self, change: Change, step: Step) -> bool:
        return await self._run(f"{change.kind} {change.name}", step)

    async def _run(self, what: str, step: Step) -> bool:
        channel = await self._link.open_channel()
        try:
            await step(channel)
        except ChannelClosedError as error:
            if not error.reply_code:
                raise  # the link is gone
            self.refused.append(f"{what}: {error.reply_code} {error.reply_text}")
            return False
        except _InUseError as error:
            self.refused.append(f"{what}: {error}")
            return False
        finally:
            await channel.close()
        return True


class _InUseError(Exception):
    """A queue holds messages, or has consumers."""


async def _delete_queue(channel: Channel, change: Change) -> None:
    state = await channel.check_queue(change.name)
    reasons: Sequence[str] = [
        f"{count} {word}{'s' if count != 1 else ''}"
        for count, word in ((state.message_count, "message"), (state.consumer_count, "consumer"))
        if count
    ]
    if reasons:
        raise _InUseError(
            f"it has {' and '.join(reasons)}, and stays. Consume or move its messages "
            "(broker-client move), or drop them (broker-client purge), and stop its consumers first"
        )
    # RabbitMQ refuses these flags for quorum queues and streams (540).
    settings = change.found.settings if change.found is not None else None
    flags = (settings or {}).get("x-queue-type", _CLASSIC) == _CLASSIC
    await channel.delete_queue(change.name, if_unused=flags, if_empty=flags)


async def _unbind(channel: Channel, binding: ListedBinding) -> None:
    to_queue = binding.destination_kind == "queue"
    method = channel.unbind_queue if to_queue else channel.unbind_exchange
    await method(binding.destination, binding.source, binding.key, json.loads(binding.arguments))
