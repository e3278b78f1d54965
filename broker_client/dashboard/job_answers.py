"""Jobs, and the audit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.responses import JSONResponse, Response

from broker_client.dashboard.api import encoded
from broker_client.dashboard.asks import Answers, Ask
from broker_client.dashboard.jobs import KINDS, Job, JobOrder
from broker_client.dashboard.messages import HASHED_BYTES, content_of_got
from broker_client.dashboard.refusals import Refusal, bad_request, not_found
from broker_client.dashboard.requests import address_of, number, text
from broker_client.moving.selection import Selection
from broker_client.runtime.pace import paced

answers: Answers = Answers()

_MOST_KEYS = 1000
_TRACED_BY_GET = 1000


@answers.on("POST", "/ui/jobs")
async def start_job(ask: Ask) -> Response:
    """Start to move, replay or delete messages; a dry run is answered when it has ended."""
    order = _order(await ask.json())
    credentials = ask.session.account.credentials
    assert credentials is not None
    if not ask.dashboard.links.are_known:
        reason = "no AMQP address of the broker is known here: start it with --amqp"
        raise Refusal(501, "no_amqp", reason)
    jobs = ask.dashboard.jobs
    job = jobs.start(order, ask.session.user, address_of(ask.request), credentials)
    if not order.dry_run:
        return JSONResponse(job.as_json(), 202)
    await jobs.finish(job)
    if job.refusal is not None:
        raise job.refusal
    return JSONResponse(job.as_json())


def _order(data: dict[str, Any]) -> JobOrder:
    kind, vhost, queue = text(data, "kind"), text(data, "vhost"), text(data, "queue")
    if kind not in KINDS:
        raise bad_request(f"kind is one of {', '.join(KINDS)}")
    to = text(data, "to", "") or "" if kind == "move" else ""
    if kind == "move" and (not to or to == queue):
        raise bad_request("the target of a move must be another queue")
    keys = data.get("keys")
    if keys is not None and not (
        isinstance(keys, list)
        and 0 < len(keys) <= _MOST_KEYS
        and all(isinstance(key, str) for key in keys)
    ):
        raise bad_request(f"keys must be a list of 1 to {_MOST_KEYS:,} keys")
    wanted = data.get("filter") or {}
    if not isinstance(wanted, dict):
        raise bad_request("filter must be an object")
    if unknown := sorted(wanted.keys() - {"reason", "origin", "error", "older_than"}):
        raise bad_request(f"unknown in filter: {', '.join(unknown)}")
    dry_run = data.get("dry_run", True)
    if not isinstance(dry_run, bool):
        raise bad_request("dry_run must be true or false")
    return JobOrder(
        kind,
        vhost,
        queue,
        to,
        None if keys is None else tuple(keys),
        Selection(older_than=_positive(wanted, "older_than")),
        _text_or_none(wanted, "origin"),
        _text_or_none(wanted, "reason"),
        _text_or_none(wanted, "error"),
        number(data, "limit", None, 1, 1_000_000_000),
        _positive(data, "rate"),
        dry_run,
    )


def _text_or_none(data: dict[str, Any], key: str) -> str | None:
    return None if data.get(key) is None else text(data, key)


def _positive(data: dict[str, Any], key: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise bad_request(f"{key} must be a number above 0")
    return float(value)


@answers.on("GET", "/ui/jobs")
async def list_jobs(ask: Ask) -> Any:
    """Recent jobs, newest first; an administrator sees all, others their own."""
    return {"jobs": [each.as_json() for each in ask.dashboard.jobs.all() if _may_see(ask, each)]}


@answers.on("GET", "/ui/jobs/{id}")
async def get_job(ask: Ask) -> Any:
    return _job(ask).as_json()


@answers.on("POST", "/ui/jobs/{id}/stop")
async def stop_job(ask: Ask) -> Any:
    """Stop a job; copies in progress are finished."""
    job = _job(ask)
    await ask.dashboard.jobs.stop(job)
    return job.as_json()


@answers.on("GET", "/ui/jobs/{id}/outcome")
async def job_outcome(ask: Ask) -> Any:
    """What became of the messages that a job has moved or published, as far as is known: those
    that are ready where they came from, those that wait where they went, and the rest."""
    job = _job(ask)
    order = job.order
    left = Counter(job.traces)
    back = await _ready_ones(ask, order.vhost, order.queue, left)
    waiting = 0
    for target in job.targets:
        if target != order.queue:
            waiting += await _ready_ones(ask, order.vhost, target, left)
    replayed = job.traces.total()
    return {
        "replayed": replayed,
        "back": back,
        "waiting": waiting,
        "handled": replayed - back - waiting,
        "looked_at": _TRACED_BY_GET,
    }


async def _ready_ones(ask: Ask, vhost: str, queue: str, left: Counter[str]) -> int:
    """How many of `left`, which are taken out of it, are among the first that are ready."""
    body = {
        "count": _TRACED_BY_GET,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
        "truncate": HASHED_BYTES,
    }
    try:
        got = await ask.post(f"queues/{encoded(vhost)}/{encoded(queue)}/get", body)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return 0  # the queue is gone
    found = 0
    async for each in paced(got):
        trace = content_of_got(each).trace
        if left[trace] > 0:
            left[trace] -= 1
            found += 1
    return found


def _job(ask: Ask) -> Job:
    job = ask.dashboard.jobs.find(ask.name("id"))
    if job is None or not _may_see(ask, job):
        raise not_found()
    return job


def _may_see(ask: Ask, job: Job) -> bool:
    return job.user == ask.session.user or ask.session.has("administrator")


@answers.on("GET", "/ui/audit")
async def audit(ask: Ask) -> Any:
    """Audit entries, newest first; an administrator sees all, others their own."""
    most = number(dict(ask.request.query_params), "limit", 200, 1, 1000) or 200
    user = None if ask.session.has("administrator") else ask.session.user
    return {"entries": [each.as_json() for each in ask.dashboard.audit.latest(most, user)]}
