"""Peek, move, replay, delete and resend, on both brokers."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from broker_client.dashboard.credentials import Credentials
from broker_client.message import Delivery
from broker_client.transport.base import ConsumerCallbacks
from tests.dashboard.conftest import Page, Shown, encoded
from tests.support.eventually import eventually

REJECT = "reject_requeue_false"


async def peeked(shown: Shown, name: str, **body: Any) -> list[Any]:
    told = await shown.page.post(f"queues/{shown.v}/{encoded(name)}/peek", body)
    messages: list[Any] = told["messages"]
    return messages


async def bodies(shown: Shown, name: str) -> list[str]:
    return [each["payload"] for each in await peeked(shown, name)]


async def job(page: Page, kind: str, shown: Shown, queue: str, **more: Any) -> Any:
    """Wait for the job to end, and return it."""
    order = {"kind": kind, "vhost": shown.vhost, "queue": queue, **more}
    told = await page.post("jobs", order)

    async def ended() -> bool:
        nonlocal told
        told = await page.get(f"jobs/{told['id']}")
        return bool(told["state"] != "running")

    await eventually(ended)
    return told


async def with_dead_letters(shown: Shown, *payloads: str) -> None:
    """A queue ``orders`` whose rejected messages go to ``dead``."""
    await shown.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await shown.declare("orders", arguments=arguments)
    for payload in payloads:
        properties = {"message_id": f"id-{payload}", "delivery_mode": 2}
        await shown.publish("orders", payload, properties=properties)
    body = {"count": len(payloads), "ackmode": REJECT, "encoding": "auto"}
    got: list[Any] = []

    async def all_rejected() -> bool:
        response = await shown.management.post(f"/api/queues/{shown.v}/orders/get", json=body)
        got.extend(response.json())
        return len(got) >= len(payloads)

    await eventually(all_rejected)

    async def all_dead() -> bool:
        return len(await peeked(shown, "dead")) == len(payloads)

    await eventually(all_dead)


async def test_peek_shows_messages_and_leaves_them(shown: Shown) -> None:
    await shown.declare("q")
    hostile = "<script>alert(1)</script>"
    await shown.publish("q", '{"a": [1]}', properties={"headers": {"x": hostile}})
    await shown.publish("q", hostile)
    data = base64.b64encode(b"\xff\x00").decode()
    await shown.publish("q", data, payload_encoding="base64")
    for _ in range(2):  # they are still there, in order
        first, second, third = await peeked(shown, "q")
        assert first["body"] == {
            "kind": "json",
            "text": '{\n  "a": [\n    1\n  ]\n}',
            "encoding": "utf-8",
        }
        assert first["headers"] == {"x": hostile}
        assert second["body"] == {"kind": "text", "text": hostile, "encoding": "utf-8"}
        assert third["body"]["kind"] == "binary"
        assert third["body"]["text"].startswith("00000000  ff 00")
        assert (third["payload"], third["payload_encoding"]) == (data, "base64")
    response = await shown.page.ask("POST", f"queues/{shown.v}/q/peek", {"count": 1})
    assert response.headers["content-type"] == "application/json"
    assert ("warning" in response.json()) is shown.is_rabbitmq
    assert response.json()["ready"] >= 1


async def test_body_is_cut_off_where_it_is_asked(shown: Shown) -> None:
    await shown.declare("q")
    await shown.publish("q", "é" * 5000)
    (message,) = await peeked(shown, "q", truncate=101)
    assert message["truncated"] is True
    assert message["size"] == 10_000
    assert message["body"] == {"kind": "text", "text": "é" * 50, "encoding": "utf-8"}


async def test_selected_messages_are_moved_in_order(shown: Shown) -> None:
    await shown.declare("from")
    await shown.declare("to")
    for payload in "abcd":
        await shown.publish("from", payload)
    keys = [each["key"] for each in await peeked(shown, "from") if each["payload"] in "bd"]
    order = {"to": "to", "keys": keys}
    dry = await job(shown.page, "move", shown, "from", dry_run=True, **order)
    assert (dry["state"], dry["count"], dry["moved"]) == ("done", 2, 0)
    assert await bodies(shown, "from") == list("abcd")
    done = await job(shown.page, "move", shown, "from", dry_run=False, **order)
    assert (done["state"], done["moved"]) == ("done", 2), done
    assert await bodies(shown, "from") == list("ac")
    assert await bodies(shown, "to") == list("bd")


async def test_move_to_a_queue_that_is_not_there_is_refused_before_anything_is_counted(
    shown: Shown,
) -> None:
    await shown.declare("from")
    order = {"kind": "move", "vhost": shown.vhost, "queue": "from", "to": "nope"}
    response = await shown.page.ask("POST", "jobs", {**order, "dry_run": True})
    assert response.status_code == 404
    assert "no queue 'nope' in vhost" in response.json()["reason"]


async def test_selected_messages_are_deleted(shown: Shown) -> None:
    await shown.declare("q")
    for payload in ("a", "b", "a"):
        await shown.publish("q", payload)
    keys = [(await peeked(shown, "q"))[0]["key"]]
    done = await job(shown.page, "delete", shown, "q", keys=keys, dry_run=False)
    assert (done["state"], done["moved"]) == ("done", 1), done
    assert sorted(await bodies(shown, "q")) == ["a", "b"]  # one of two that are equal


async def test_dead_letters_are_grouped_and_replayed_where_they_came_from(shown: Shown) -> None:
    await with_dead_letters(shown, "1", "2", "3")
    told = await shown.page.post("dead-letters/groups", {"queues": [[shown.vhost, "dead"]]})
    (group,) = told["groups"]
    assert (group["queue"], group["origin"], group["reason"]) == ("dead", "orders", "rejected")
    assert group["count"] == 3
    assert group["oldest"] <= group["newest"]
    kinds = [each["kind"] for each in group["example"]["story"]]
    assert kinds[:2] == ["published", "dead_lettered"]
    wanted = {"origin": "orders", "reason": "rejected", "error": ""}
    dry = await job(shown.page, "replay", shown, "dead", filter=wanted, dry_run=True)
    assert dry["groups"] == [{"queue": "orders", "reason": "rejected", "error": "", "count": 3}]
    done = await job(shown.page, "replay", shown, "dead", filter=wanted, dry_run=False, limit=2)
    assert (done["state"], done["moved"]) == ("done", 2), done
    assert await bodies(shown, "orders") == ["1", "2"]
    replayed = (await peeked(shown, "orders"))[0]
    assert replayed["properties"]["message_id"] == "id-1"
    assert "x-death" not in replayed["headers"]
    assert await bodies(shown, "dead") == ["3"]
    outcome = await shown.page.get(f"jobs/{done['id']}/outcome")
    assert (outcome["replayed"], outcome["back"], outcome["waiting"]) == (2, 0, 2)
    body = {"count": 1, "ackmode": REJECT, "encoding": "auto"}
    await shown.management.post(f"/api/queues/{shown.v}/orders/get", json=body)
    body["ackmode"] = "ack_requeue_false"
    await shown.management.post(f"/api/queues/{shown.v}/orders/get", json=body)

    async def is_told() -> bool:
        found = await shown.page.get(f"jobs/{done['id']}/outcome")
        return (found["back"], found["waiting"], found["handled"]) == (1, 0, 1)

    await eventually(is_told)


async def test_replay_with_a_limit_passes_over_what_never_died(shown: Shown) -> None:
    await shown.declare("dead")
    for payload in ("alive 1", "alive 2"):
        await shown.publish("dead", payload)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await shown.declare("orders", arguments=arguments)
    await shown.publish("orders", "died")
    body = {"count": 1, "ackmode": REJECT, "encoding": "auto"}
    await shown.management.post(f"/api/queues/{shown.v}/orders/get", json=body)
    await eventually(lambda: _count(shown, "dead", 3))
    done = await job(shown.page, "replay", shown, "dead", limit=1, dry_run=False)
    assert (done["state"], done["moved"]) == ("done", 1), done
    assert await bodies(shown, "orders") == ["died"]
    assert await bodies(shown, "dead") == ["alive 1", "alive 2"]


async def _count(shown: Shown, name: str, count: int) -> bool:
    return len(await peeked(shown, name)) == count


async def test_filter_that_fits_nothing_moves_nothing(shown: Shown) -> None:
    await with_dead_letters(shown, "1")
    for wanted in ({"reason": "expired"}, {"origin": "other"}, {"error": "ValueError: x"}):
        done = await job(shown.page, "replay", shown, "dead", filter=wanted, dry_run=False)
        assert (done["state"], done["count"], done["moved"]) == ("done", 0, 0)
    assert await bodies(shown, "dead") == ["1"]


async def test_resent_message_takes_the_place_of_the_original(shown: Shown) -> None:
    await shown.declare("q")
    await shown.declare("other")
    await shown.publish("q", '{"id": 1}', properties={"message_id": "m1", "timestamp": 1_700_000})
    await shown.publish("q", "rest")
    message = (await peeked(shown, "q"))[0]
    copy = {
        "key": message["key"],
        "exchange": "",
        "routing_key": "other",
        "properties": message["properties"],
        "headers": {"fixed": True},
        "payload": '{"id": 2}',
        "payload_encoding": "string",
        "confirmed": True,
    }
    path = f"queues/{shown.v}/q/resend"
    told = await shown.page.post(path, copy)
    assert (told["routed"], told["taken"]) == (True, True)
    (sent,) = await peeked(shown, "other")
    assert (sent["payload"], sent["headers"]) == ('{"id": 2}', {"fixed": True})
    assert sent["properties"]["message_id"] == "m1"
    assert sent["properties"]["timestamp"] == 1_700_000
    assert await bodies(shown, "q") == ["rest"]
    response = await shown.page.ask("POST", path, copy)
    assert (response.status_code, response.json()["error"]) == (409, "gone")
    assert await bodies(shown, "q") == ["rest"]


async def test_resend_that_nobody_gets_takes_nothing_out(shown: Shown) -> None:
    await shown.declare("q")
    await shown.publish("q", "only")
    (message,) = await peeked(shown, "q")
    copy = {"key": message["key"], "routing_key": "nobody", "payload": "x", "confirmed": True}
    told = await shown.page.post(f"queues/{shown.v}/q/resend", copy)
    assert (told["routed"], told["taken"]) == (False, False)
    assert await bodies(shown, "q") == ["only"]


async def test_resend_to_an_exchange_that_is_not_there_takes_nothing_out(shown: Shown) -> None:
    await shown.declare("q")
    await shown.publish("q", "only")
    (message,) = await peeked(shown, "q")
    copy = {"key": message["key"], "exchange": "none", "routing_key": "x", "payload": "x"}
    path = f"queues/{shown.v}/q/resend"
    response = await shown.page.ask("POST", path, {**copy, "confirmed": True})
    assert response.status_code == 404
    assert "none" in response.json()["reason"]
    assert (await shown.page.ask("POST", path, copy)).status_code == 400  # not confirmed

    async def is_back() -> bool:
        return await bodies(shown, "q") == ["only"]

    await eventually(is_back)


async def test_move_without_permission_fails_and_says_so(shown: Shown) -> None:
    await shown.declare("from")
    await shown.declare("to")
    await shown.publish("from", "x")
    await shown.user("reader", "management")
    narrow = {"configure": "", "write": "", "read": ".*"}
    await shown.management.put(f"/api/permissions/{shown.v}/reader", json=narrow)
    async with shown.another_page("reader") as page:
        done = await job(page, "move", shown, "from", to="to", dry_run=False)
        assert (done["state"], done["moved"]) == ("failed", 0)
        assert "refused" in done["error"]
        assert "reader:" not in done["error"]
        entries = (await page.get("audit"))["entries"]
        assert (entries[0]["action"], entries[0]["outcome"]) == ("move", 403)
        assert {each["user"] for each in entries} == {"reader"}

    async def is_back() -> bool:
        return await bodies(shown, "from") == ["x"]

    await eventually(is_back)
    await shown.management.delete("/api/users/reader")


async def test_dead_letters_of_which_nothing_is_known_are_a_group_that_can_be_deleted(
    shown: Shown,
) -> None:
    await with_dead_letters(shown, "1")
    await shown.publish("dead", "stray")
    told = await shown.page.post("dead-letters/groups", {"queues": [[shown.vhost, "dead"]]})
    groups = {(each["origin"], each["reason"]): each["count"] for each in told["groups"]}
    assert groups == {("orders", "rejected"): 1, ("", ""): 1}
    unknown = {"origin": "", "reason": "", "error": ""}
    done = await job(shown.page, "delete", shown, "dead", filter=unknown, dry_run=False)
    assert (done["count"], done["moved"]) == (1, 1)
    assert await bodies(shown, "dead") == ["1"]


async def test_consumers_tell_how_long_they_hold_what_they_hold_the_longest(ours: Shown) -> None:
    await ours.declare("q")
    for payload in "abc":
        await ours.publish("q", payload)
    async with ours.dashboard.links.open(Credentials("guest", "guest"), ours.vhost) as link:
        taken: list[Delivery] = []
        for prefetch in (1, 2, 1):  # of one tag, on three channels: the last gets nothing
            channel = await link.open_channel()
            await channel.qos(prefetch)
            callbacks = ConsumerCallbacks(taken.append, lambda tag: None, lambda tag: None)
            await channel.consume("q", callbacks, consumer_tag="same")
        await eventually(lambda: len(taken) == 3)
        told = await ours.page.get(f"queues/{ours.v}/q")
    since = [each["delivered_at"] for each in told["in_flight"]]
    held = {each["unacked"]: each.get("holds_since") for each in told["consumers"]}
    assert held == {1: since[0], 2: since[1], 0: None}


async def test_job_is_seen_by_its_user_and_administrators_only(ours: Shown) -> None:
    await ours.declare("q")
    done = await job(ours.page, "delete", ours, "q", dry_run=False)
    await ours.user("other", "monitoring")
    async with ours.another_page("other") as page:
        assert (await page.ask("GET", f"jobs/{done['id']}")).status_code == 404
        assert (await page.get("jobs"))["jobs"] == []
        assert (await page.ask("POST", f"jobs/{done['id']}/stop", {})).status_code == 404


async def test_stopped_job_leaves_the_rest(ours: Shown) -> None:
    await ours.declare("from")
    await ours.declare("to")
    for number in range(40):
        await ours.publish("from", str(number))
    order = {"kind": "move", "vhost": ours.vhost, "queue": "from", "to": "to", "rate": 20}
    told = await ours.page.post("jobs", {**order, "dry_run": False})
    assert told["state"] == "running"
    stopped = await ours.page.post(f"jobs/{told['id']}/stop")
    assert stopped["state"] == "stopped"
    left, moved = await bodies(ours, "from"), await bodies(ours, "to")
    assert sorted(map(int, left + moved)) == list(range(40))
    assert left


@pytest.mark.parametrize(
    "order",
    [
        {"kind": "burn"},
        {"kind": "move", "to": "from"},
        {"kind": "move"},
        {"kind": "delete", "keys": []},
        {"kind": "delete", "keys": "all"},
        {"kind": "replay", "filter": {"colour": "red"}},
        {"kind": "replay", "limit": 0},
        {"kind": "replay", "rate": -1},
        {"kind": "replay", "dry_run": "no"},
    ],
    ids=str,
)
async def test_order_that_makes_no_sense_is_refused(ours: Shown, order: dict[str, Any]) -> None:
    response = await ours.page.ask("POST", "jobs", {"vhost": ours.vhost, "queue": "from", **order})
    assert (response.status_code, response.json()["error"]) == (400, "bad_request")


async def test_routes_are_those_of_the_broker(shown: Shown) -> None:
    await shown.declare("orders")
    await shown.declare("all")
    base = f"/api/exchanges/{shown.v}"
    await shown.management.put(f"{base}/events", json={"type": "topic"})
    await shown.management.put(f"{base}/inner", json={"type": "fanout"})
    bind = f"/api/bindings/{shown.v}/e/events"
    await shown.management.post(f"{bind}/q/orders", json={"routing_key": "order.*"})
    await shown.management.post(f"{bind}/e/inner", json={"routing_key": "#"})
    await shown.management.post(f"/api/bindings/{shown.v}/e/inner/q/all", json={"routing_key": ""})
    question = {"vhost": shown.vhost, "exchange": "events", "routing_key": "order.placed"}
    told = await shown.page.post("routes", question)
    assert told["queues"] == [
        {"name": "all", "via": [["events", "#"], ["inner", ""]]},
        {"name": "orders", "via": [["events", "order.*"]]},
    ]
    assert told["unrouted"] is False
    told = await shown.page.post("routes", {"vhost": shown.vhost, "routing_key": "nobody"})
    assert told == {"queues": [], "unrouted": True}
    drawing = await shown.page.get(f"topology?vhost={shown.v}")
    ids = {each["id"] for each in drawing["nodes"]}
    assert {"exchange:events", "exchange:inner", "queue:orders", "queue:all"} == ids
    edges = {(each["from"], each["to"], each.get("key")) for each in drawing["edges"]}
    assert ("exchange:events", "queue:orders", "order.*") in edges


async def test_dead_letter_queues_are_found(shown: Shown) -> None:
    await with_dead_letters(shown, "1")
    await shown.dashboard.sampler.look()
    found = (await shown.page.get("dead-letters"))["queues"]
    mine = [each for each in found if each["vhost"] == shown.vhost]
    assert [(each["name"], each["from"]) for each in mine] == [("dead", [[shown.vhost, "orders"]])]


async def test_who_looks_at_a_queue_hides_its_messages_from_no_other_user(ours: Shown) -> None:
    """Each peek takes all messages out for a moment; a count at that time would be 0."""
    await ours.declare("many")
    for number in range(50):
        await ours.publish("many", str(number))
    counted = asyncio.Event()
    lengths: set[int] = set()

    async def look() -> None:
        while not counted.is_set():
            lengths.add(len(await peeked(ours, "many")))

    looking = [asyncio.create_task(look()) for _ in range(3)]
    counts = {(await job(ours.page, "delete", ours, "many", dry_run=True))["count"]}
    counts.add((await job(ours.page, "delete", ours, "many", dry_run=True))["count"])
    counted.set()
    await asyncio.gather(*looking)
    assert (counts, lengths) == ({50}, {50})
