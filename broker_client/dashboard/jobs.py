"""Moves, replays and deletions of messages that run while pages come and go."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, OrderedDict
from dataclasses import field
from typing import Any

from broker_client.amqp.x_death import Death
from broker_client.dashboard.audit import Audit
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.links import Links, refusal_of_error
from broker_client.dashboard.messages import content_of, key_of
from broker_client.dashboard.news import News
from broker_client.dashboard.refusals import INTERNAL_ERROR, Refusal
from broker_client.dashboard.stories import error_of
from broker_client.dashboard.turns import QueueTurns
from broker_client.errors import BrokerClientError
from broker_client.message import Delivery, Outgoing
from broker_client.moving.copies import Fate, copy_for, copy_for_replay
from broker_client.moving.move import MoveOptions, MoveProgress, check_is_there, move_each
from broker_client.moving.selection import EVERYTHING, Selection
from broker_client.runtime.slotted import slotted

log: logging.Logger = logging.getLogger("broker_client.dashboard")

KINDS = ("move", "replay", "delete")
_KEPT = 100
_RUNNING = 8
_TOLD_EVERY = 0.25  # seconds
_TRACED = 10_000
LOOKED_AT = 10_000
"""Messages that a dry run looks at; it says so where there are more."""


Group = tuple[str, str, str]
"""The queue where a message died last, why, and with which error; "" for what is not known."""


@slotted
class JobOrder:
    """The order of a job."""

    kind: str
    vhost: str
    queue: str
    to: str = ""
    """The queue that gets them, of a move."""
    keys: tuple[str, ...] | None = None
    """Of the messages that are meant; None is all."""
    selection: Selection = EVERYTHING
    origin: str | None = None
    reason: str | None = None
    error: str | None = None
    """Only those of this group, by where and why they died last and with which error; "" is those
    of which that is not known, None is any."""
    limit: int | None = None
    rate: float | None = None
    dry_run: bool = False


@slotted(frozen=False, eq=False)
class Job:
    """A job: its order and progress."""

    id: str
    order: JobOrder
    user: str
    address: str
    started: float
    state: str = "running"
    """`running`, `done`, `stopped` or `failed`."""
    ended: float | None = None
    refusal: Refusal | None = None
    """Why it failed."""
    moved: MoveProgress = field(default_factory=MoveProgress)
    groups: Counter[Group] = field(default_factory=Counter)
    traces: Counter[str] = field(default_factory=Counter)
    """Of what was copied, so that it can be found again."""
    targets: Counter[str] = field(default_factory=Counter)
    more: bool = False
    """A dry run that has not looked at all messages."""
    change: int = 0
    told: float = 0.0
    task: asyncio.Task[None] | None = None

    def as_json(self) -> dict[str, Any]:
        order, moved = self.order, self.moved
        told: dict[str, Any] = {
            "id": self.id,
            "kind": order.kind,
            "vhost": order.vhost,
            "queue": order.queue,
            "to": order.to,
            "user": self.user,
            "state": self.state,
            "dry_run": order.dry_run,
            "started": self.started,
            "seen": moved.seen,
            "count": moved.selected.total(),
            "moved": 0 if order.dry_run else moved.moved + moved.already_moved,
            "refused": moved.refused.total(),
            "refusals": [{"reason": why, "count": n} for why, n in moved.refused.items()],
            "unconfirmed": moved.unconfirmed,
            "blocked": moved.blocked,
            "total": order.limit,
            "groups": [
                {"queue": queue, "reason": reason, "error": error, "count": count}
                for (queue, reason, error), count in self.groups.most_common(100)
            ],
        }
        if self.ended is not None:
            told["ended"] = self.ended
        if self.more:
            told["more"] = True
        if self.refusal is not None:
            told["error"] = self.refusal.reason
        return told

    def fail(self, refusal: Refusal) -> None:
        self.state, self.refusal = "failed", refusal


class Jobs:
    """Recent and running jobs."""

    def __init__(self, links: Links, audit: Audit, news: News, turns: QueueTurns) -> None:
        """
        Args:
            links: to the broker.
            audit: notified of the end of each job that changes something.
            news: notified of progress.
            turns: of those who look at a queue.
        """
        self._links, self._audit, self._news, self._turns = links, audit, news, turns
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self.changes: int = 0
        """How many times a job has changed."""

    def start(self, order: JobOrder, user: str, address: str, credentials: Credentials) -> Job:
        """Begin.

        Raises:
            Refusal: 429, too many run already.
        """
        running = [each for each in self._jobs.values() if each.state == "running"]
        if len(running) >= _RUNNING:
            raise Refusal(429, "too_many_requests", f"{_RUNNING} jobs run already: wait for one")
        job = Job(secrets.token_urlsafe(9), order, user, address, time.time())
        self._jobs[job.id] = job
        while len(self._jobs) > _KEPT:
            oldest = next(each for each in self._jobs.values() if each.state != "running")
            del self._jobs[oldest.id]
        job.task = asyncio.create_task(
            self._run(job, credentials), name=f"dashboard: {order.kind} from {order.queue}"
        )
        self._changed(job)
        return job

    async def finish(self, job: Job) -> None:
        """Wait for the end of a job."""
        assert job.task is not None
        await asyncio.wait([job.task])

    def find(self, job_id: str) -> Job | None:
        """The job of that id."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Newest first."""
        return list(reversed(self._jobs.values()))

    def since(self, change: int) -> list[Job]:
        """Those that have changed since `changes` was `change`."""
        return [each for each in self._jobs.values() if each.change > change]

    async def stop(self, job: Job) -> None:
        """Stop a job: copies in progress are finished, the rest stays where it is."""
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.wait([job.task])

    async def stop_all(self) -> None:
        await asyncio.gather(*(self.stop(each) for each in list(self._jobs.values())))

    # ---------------------------------------------------------------- running

    async def _run(self, job: Job, credentials: Credentials) -> None:
        try:
            await self._carry_out(job, credentials)
            job.state = "done"
        except asyncio.CancelledError:
            job.state = "done" if job.more else "stopped"
        except Refusal as refusal:
            job.fail(refusal)
        except BrokerClientError as error:
            job.fail(refusal_of_error(error))
        except Exception:
            log.exception("%s from queue %r failed", job.order.kind, job.order.queue)
            job.fail(Refusal(500, "internal_error", INTERNAL_ERROR))
        job.ended = time.time()
        self._changed(job)
        if not job.order.dry_run:
            order, done = job.order, job.moved
            detail = f"{job.state}: {done.moved + done.already_moved} of {done.selected.total()}"
            target = f"queue {order.queue} in {order.vhost}"
            target += f" to queue {order.to}" if order.to else ""
            outcome = 200 if job.refusal is None else job.refusal.status
            self._audit.record(job.user, job.address, order.kind, target, outcome, detail)
            self._news.tell()

    async def _carry_out(self, job: Job, credentials: Credentials) -> None:
        order = job.order
        limit = order.limit
        if order.keys is not None:
            limit = min(len(order.keys), limit or len(order.keys))

        def progress(moved: MoveProgress) -> None:
            job.moved = moved
            if not order.dry_run:
                end_turn()  # it knows by now how many there are
            if order.dry_run and moved.seen >= LOOKED_AT and not job.more:
                job.more = True
                assert job.task is not None
                job.task.cancel()
            if time.monotonic() - job.told >= _TOLD_EVERY:
                job.told = time.monotonic()
                self._changed(job)

        options = MoveOptions(order.selection, limit, order.rate, progress=progress)
        decide = _Decision(job)
        taken = self._turns.taken(order.vhost, order.queue)
        async with self._links.open(credentials, order.vhost) as link, taken as end_turn:
            if order.to:
                await check_is_there(link, order.to)
            await move_each(link, order.queue, decide, options, dry_run=order.dry_run)

    def _changed(self, job: Job) -> None:
        self.changes += 1
        job.change = self.changes
        self._news.tell()


class _Decision:
    """What becomes of each message, by the order of a job; counts them by group."""

    def __init__(self, job: Job) -> None:
        self._job = job
        keys = job.order.keys
        self._keys = None if keys is None else Counter(keys)
        self._traced = 0

    def __call__(self, delivery: Delivery, death: Death) -> Outgoing | Fate:
        order = self._job.order
        headers = delivery.properties.headers or {}
        group = str(death.get("queue", "")), str(death.get("reason", "")), error_of(headers)
        wanted = order.origin, order.reason, order.error
        if any(one is not None and one != other for one, other in zip(wanted, group, strict=True)):
            return Fate.KEEP
        key = "" if self._keys is None else key_of(delivery)
        if self._keys is not None and not self._keys[key]:
            return Fate.KEEP
        fate = _fate(order, delivery, death)
        if fate is Fate.KEEP:
            return Fate.KEEP
        if self._keys is not None:
            self._keys[key] -= 1
        self._job.groups[group] += 1
        if isinstance(fate, Outgoing) and self._traced < _TRACED:
            self._traced += 1
            self._job.traces[content_of(delivery).trace] += 1
            self._job.targets[fate.routing_key] += 1
        return fate


def _fate(order: JobOrder, delivery: Delivery, death: Death) -> Outgoing | Fate:
    if order.kind == "delete":
        return Fate.REMOVE
    if order.kind == "move":
        return copy_for(order.to, delivery, delivery.properties.headers)
    return copy_for_replay(delivery, death)
