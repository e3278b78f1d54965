"""The overview, the queues, their history, and the stream of what changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from broker_client.dashboard.api import LoginRefusedError
from broker_client.dashboard.asks import Answers, Ask
from broker_client.dashboard.refusals import Refusal, bad_request, not_found
from broker_client.dashboard.sampler import NOTHING, Sample
from broker_client.dashboard.views import (
    Vhosts,
    event,
    overview_of,
    sees,
    small_event,
    visible_rows,
)
from broker_client.runtime.pace import as_json

answers: Answers = Answers()

HEARTBEAT = 5.0  # seconds
_STREAMS = 500
_STREAMS_OF_A_SESSION = 10


@answers.on("GET", "/ui/overview")
async def overview(ask: Ask) -> Any:
    """Totals, rates, and what needs attention first."""
    vhosts = await ask.dashboard.vhosts_of(ask.session)
    return await overview_of(await ask.dashboard.sampler.fresh(), vhosts)


@answers.on("GET", "/ui/queues")
async def queues(ask: Ask) -> Response:
    """The rows of all queues that the user may see."""
    vhosts = await ask.dashboard.vhosts_of(ask.session)
    sample = await ask.dashboard.sampler.fresh()
    rows = visible_rows(sample, vhosts)
    body = await as_json({"time": sample.time, "sample": sample.number, "queues": rows})
    return Response(body, media_type="application/json")


@answers.on("GET", "/ui/history")
async def history(ask: Ask) -> Any:
    """Recent measurements of all vhosts, of one, or of a queue."""
    query = ask.request.query_params
    kind, vhost, queue = query.get("range", "fine"), query.get("vhost"), query.get("queue")
    if kind not in ("fine", "coarse"):
        raise bad_request("range is fine or coarse")
    if queue is not None and vhost is None:
        raise bad_request("a queue needs its vhost")
    sampler = ask.dashboard.sampler
    seen = await ask.dashboard.vhosts_of(ask.session)
    if vhost is not None and not sees(seen, vhost):
        raise not_found()
    there = {each for each, _ in sampler.latest.rows if sees(seen, each)}
    wanted = there if vhost is None else {vhost}
    key = None if queue is None else (vhost or "", queue)
    return await sampler.history.shown(sampler.latest.time or time.time(), kind, wanted, key)


@answers.on("GET", "/ui/stream", counts_as_use=False)
async def stream(ask: Ask) -> Response:
    """Server-sent events: what there is, then what changes, and a heartbeat."""
    streams = ask.dashboard.streams
    if streams.total() >= _STREAMS or streams[ask.key] >= _STREAMS_OF_A_SESSION:
        raise Refusal(429, "too_many_requests", "too many pages are open")
    return StreamingResponse(
        _events(ask),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},  # nginx would hold events back
    )


async def _events(ask: Ask) -> AsyncIterator[bytes]:
    """Readers never fall behind: a slow one gets the difference to what it saw last."""
    dashboard = ask.dashboard
    dashboard.streams[ask.key] += 1
    dashboard.sampler.watch()
    seen = _Seen(dashboard.audit.written, dashboard.jobs.changes)
    try:
        while True:
            if dashboard.sessions.find(ask.key, use=False) is None:
                yield small_event("end", {"reason": ask.session.end_reason})
                return
            waiting = dashboard.news.next()
            try:
                async for each in _new(ask, seen):
                    yield each
            except LoginRefusedError:
                await dashboard.refused(ask.key, ask.session)
            except Refusal as refusal:
                yield small_event("unreachable", {"reason": refusal.reason})
            yield small_event("heartbeat", {"time": time.time()})
            await dashboard.news.wait(HEARTBEAT, waiting)
    finally:
        dashboard.sampler.unwatch()
        dashboard.streams[ask.key] -= 1
        if not dashboard.streams[ask.key]:
            del dashboard.streams[ask.key]


class _Seen:
    """What a reader has got."""

    def __init__(self, audit: int, jobs: int) -> None:
        self.sample: Sample | None = None
        self.vhosts: Vhosts = frozenset()
        self.failure = ""
        self.audit, self.jobs = audit, jobs


async def _new(ask: Ask, seen: _Seen) -> AsyncIterator[bytes]:
    dashboard, session = ask.dashboard, ask.session
    sampler = dashboard.sampler
    sample = sampler.latest
    if sample is not NOTHING and sample is not seen.sample:
        vhosts = await dashboard.vhosts_of(session)
        before = seen.sample if vhosts == seen.vhosts else None
        seen.sample, seen.vhosts = sample, vhosts
        yield await dashboard.shared.overview(sample, vhosts)
        await asyncio.sleep(0)
        yield await dashboard.shared.queues(before, sample, vhosts)
    if sampler.failure != seen.failure:
        seen.failure = sampler.failure
        if seen.failure:
            yield small_event("unreachable", {"reason": seen.failure})
    if dashboard.jobs.changes != seen.jobs:
        changed, seen.jobs = dashboard.jobs.since(seen.jobs), dashboard.jobs.changes
        for job in changed:
            if job.user == session.user or session.has("administrator"):
                yield await event("job", job.as_json())
    if dashboard.audit.written != seen.audit:
        entries, seen.audit = dashboard.audit.since(seen.audit), dashboard.audit.written
        for entry in entries:
            if entry.user == session.user or session.has("administrator"):
                yield small_event("audit", entry.as_json())
