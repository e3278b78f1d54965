"""Moves over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.conftest import Api
from tests.support.eventually import eventually

Q, OTHER, DEAD = (f"/api/queues/%2F/{name}" for name in ("q", "other", "dead"))


@pytest.fixture(autouse=True)
async def queues(api: Api) -> None:
    """``q`` dead-letters to ``dead``; besides there is ``other``."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await api.client.put(Q, json={"arguments": arguments})
    for path in (OTHER, DEAD):
        await api.client.put(path, json={})


async def publish(api: Api, queue: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        message = {
            "routing_key": queue,
            "payload": body,
            "payload_encoding": "string",
            "properties": properties,
        }
        answer = await api.client.post("/api/exchanges/%2F/amq.default/publish", json=message)
        assert answer.json() == {"routed": True}


async def taken(api: Api, path: str) -> list[str]:
    """Remove all messages; returns their bodies."""
    wanted = {"count": 1_000, "ackmode": "ack_requeue_false", "encoding": "auto"}
    return [each["payload"] for each in (await api.client.post(f"{path}/get", json=wanted)).json()]


async def die(api: Api, *bodies: str) -> None:
    await publish(api, "q", *bodies)
    wanted = {"count": len(bodies), "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert (await api.client.post(f"{Q}/get", json=wanted)).status_code == 200


async def answered(api: Api, path: str, **body: Any) -> dict[str, Any]:
    response = await api.client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_move_takes_what_was_chosen_and_leaves_the_rest_in_order(api: Api) -> None:
    await publish(api, "q", "1", "2")
    await publish(api, "q", "3", "4", headers={"kind": "b"}, message_id="m")
    counted = await answered(api, f"{Q}/move", to="other", headers={"kind": "b"}, dry_run=True)
    assert counted["selected"] == [{"queue": "other", "reason": "", "count": 2}]
    assert counted["moved"] == 0
    moved = await answered(api, f"{Q}/move", to="other", message_ids=["m"], limit=1)
    assert (moved["moved"], moved["seen"], moved["left"]) == (1, 4, 3)
    assert await taken(api, OTHER) == ["3"]
    assert await taken(api, Q) == ["1", "2", "4"]


async def test_replay_counts_first_and_then_puts_back(api: Api) -> None:
    await die(api, "1", "2")
    counted = await answered(api, f"{DEAD}/replay")
    assert counted["selected"] == [{"queue": "q", "reason": "rejected", "count": 2}]
    assert (await answered(api, f"{DEAD}/replay", dry_run=False, reason="expired"))["moved"] == 0
    assert (await answered(api, f"{DEAD}/replay", dry_run=False, **{"from": "q"}))["moved"] == 2
    assert await taken(api, Q) == ["1", "2"]


async def test_what_the_target_does_not_take_is_counted_with_the_reason(api: Api) -> None:
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    await api.client.put("/api/queues/%2F/full", json={"arguments": full})
    await publish(api, "q", "1")
    answer = await answered(api, f"{Q}/move", to="full")
    assert answer["refused"] == {"the broker refused it (nack)": 1}
    assert await taken(api, Q) == ["1"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (f"{Q}/move", {}, "key_missing: to"),
        (f"{Q}/move", {"to": "nope"}, "no queue 'nope' in vhost '/'"),
        (f"{Q}/move", {"to": "q"}, "a queue cannot be moved to itself"),
        (f"{Q}/move", {"to": "other", "limit": 0}, "limit must be a number, 1 or more"),
        (f"{Q}/move", {"to": "other", "limit": 1.5}, "limit must be a whole number"),
        (f"{Q}/replay", {"rate": "fast"}, "rate must be a number, 0.1 or more"),
        (f"{Q}/replay", {"headers": {"a": 1}}, "headers must be an object of strings"),
        (f"{Q}/replay", {"message_ids": "m"}, "message_ids must be a list of strings"),
        (f"{Q}/replay", {"reason": 1}, "reason must be a string"),
        (f"{Q}/replay", {"dry_run": "perhaps"}, "dry_run must be true or false"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_reason(
    api: Api, path: str, body: dict[str, Any], reason: str
) -> None:
    response = await api.client.post(path, json=body)
    assert (response.status_code, response.json()["reason"]) == (400, reason)


async def test_a_queue_that_is_not_there_is_404(api: Api) -> None:
    response = await api.client.post("/api/queues/%2F/nope/move", json={"to": "q"})
    assert response.status_code == 404


async def test_moves_need_the_permissions_that_they_need_over_amqp(api: Api) -> None:
    await publish(api, "q", "1")
    reader = api.login("reader", "management")
    api.node.access.set_permissions("reader", "/", configure="", write="^other$", read="^q$")

    async def status(path: str, body: dict[str, Any]) -> int:
        return (await api.client.post(path, json=body, auth=reader)).status_code

    assert await status(f"{Q}/move", {"to": "other"}) == 401  # it goes by the default exchange
    assert await status(f"{Q}/move", {"to": "other", "dry_run": True}) == 200
    assert await status(f"{OTHER}/replay", {}) == 401
    api.node.access.set_permissions("reader", "/", configure="", write="^amq.default$", read="^q$")
    assert await status(f"{Q}/move", {"to": "other"}) == 200
    assert await taken(api, OTHER) == ["1"]


async def test_a_move_ends_in_order_when_its_client_goes(api: Api) -> None:
    bodies = [str(i) for i in range(100)]
    await publish(api, "q", *bodies)
    gone = httpx.Timeout(60.0, read=0.5)
    with pytest.raises(httpx.ReadTimeout):
        await api.client.post(f"{Q}/move", json={"to": "other", "rate": 20}, timeout=gone)
    await eventually(lambda: api.node.stats().connections == 0)
    moved = await taken(api, OTHER)
    assert 0 < len(moved) < 100
    assert moved + await taken(api, Q) == bodies
