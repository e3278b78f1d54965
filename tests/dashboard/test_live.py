"""Overview, queues, history and the stream, on both brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from broker_client.dashboard import application
from broker_client.dashboard.api import Account, ManagementApi
from broker_client.dashboard.application import make_application
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.dashboard import Dashboard
from broker_client.message import Outgoing, Properties
from broker_client.server.http.listener import AsgiListener
from tests.dashboard.conftest import Page, Shown, encoded
from tests.support.eventually import eventually
from tests.support.own_server import free_port

Event = tuple[str, Any]


async def events(page: Page) -> AsyncIterator[Event]:
    """The events of the stream, until it ends."""
    async with page.client.stream("GET", "stream") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def first(stream: AsyncIterator[Event], name: str, **like: Any) -> Any:
    """The data of the next event with this name."""
    async with asyncio.timeout(30.0):
        async for found, data in stream:
            if found == name and like.items() <= data.items():
                return data
    raise AssertionError(f"the stream ended without {name}")


async def row_of(shown: Shown, name: str) -> Any:
    """The row of a queue of the test, in a new sample."""
    await shown.dashboard.sampler.look()
    rows = (await shown.page.get("queues"))["queues"]
    return next((each for each in rows if (each["vhost"], each["name"]) == (shown.vhost, name)), {})


async def has_ready(shown: Shown, name: str, count: int) -> Any:
    """The row once the API reports so many messages; RabbitMQ's counts lag."""

    async def there() -> bool:
        return bool((await row_of(shown, name)).get("ready", 0) == count)

    await eventually(there)
    return await row_of(shown, name)


async def test_row_tells_what_a_queue_has(shown: Shown) -> None:
    await shown.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await shown.declare("orders", arguments=arguments, durable=True)
    for _ in range(3):
        await shown.publish("orders")
    row = await has_ready(shown, "orders", 3)
    assert row["durable"] is True
    assert row["type"] == "classic"
    assert row["dlx"] == ""
    assert "unacked" not in row
    assert "consumers" not in row
    assert (await row_of(shown, "dead"))["dead_letter_queue"] is True
    if shown.is_rabbitmq:
        assert "deferred" not in row


async def test_overview_says_what_needs_attention(shown: Shown) -> None:
    await shown.declare("orders")
    await shown.publish("orders")
    await has_ready(shown, "orders", 1)
    overview = await shown.page.get("overview")
    assert overview["totals"]["ready"] >= 1
    assert ("deferred" in overview["totals"]) is not shown.is_rabbitmq
    found = [each for each in overview["attention"] if each.get("vhost") == shown.vhost]
    assert [(each["kind"], each["queue"], each["value"]) for each in found] == [
        ("no_consumers", "orders", 1)
    ]
    assert overview["alarms"] == []
    assert overview["node_state"]["running"] is True


async def test_history_has_points_of_a_queue_and_of_all(shown: Shown) -> None:
    await shown.declare("orders")
    await shown.publish("orders")
    await has_ready(shown, "orders", 1)
    path = f"history?vhost={shown.v}&queue=orders"
    told = await shown.page.get(path)
    assert told["step"] == 5
    assert told["ready"][-1] == 1
    assert len({len(told[name]) for name in ("ready", "unacked", "publish", "ack")}) == 1
    assert (await shown.page.get("history?range=coarse"))["ready"][-1] >= 1
    assert (await shown.page.ask("GET", "history?range=x")).status_code == 400


async def test_stream_tells_what_there_is_and_then_what_changes(shown: Shown) -> None:
    await shown.declare("orders")
    await row_of(shown, "orders")
    stream = events(shown.page)
    assert (await first(stream, "overview"))["sample"] >= 1
    full = await first(stream, "queues")
    assert full["full"] is True
    assert [shown.vhost, "orders"] in [[row["vhost"], row["name"]] for row in full["queues"]]
    assert (await first(stream, "heartbeat"))["time"] > 0
    await shown.publish("orders")
    await has_ready(shown, "orders", 1)
    changed: list[Any] = []
    while not any(row.get("ready") for row in changed):
        delta = await first(stream, "queues")
        assert delta["full"] is False
        changed = [row for row in delta["changed"] if row["vhost"] == shown.vhost]
    await shown.management.delete(f"/api/queues/{shown.v}/orders")
    gone: list[Any] = []
    while [shown.vhost, "orders"] not in gone:
        await shown.dashboard.sampler.look()
        gone = (await first(stream, "queues"))["gone"]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_stream_ends_with_its_session(ours: Shown) -> None:
    stream = events(ours.page)
    await first(stream, "heartbeat")
    await ours.page.ask("POST", "logout", {})
    ours.dashboard.news.tell()
    assert await first(stream, "end") == {"reason": "logged_out"}
    assert [each async for each in stream] == []


async def test_stream_tells_of_changes_by_others(ours: Shown) -> None:
    stream = events(ours.page)
    await first(stream, "heartbeat")
    async with ours.another_page("guest") as page:
        await page.ask("PUT", f"api/queues/{ours.v}/orders", {})
        entry = await first(stream, "audit", action="declare")
    assert (entry["user"], entry["outcome"]) == ("guest", 201)
    assert "queue orders" in entry["target"]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_streams_of_a_session_are_limited(ours: Shown) -> None:
    streams = [events(ours.page) for _ in range(10)]
    for each in streams:
        await first(each, "heartbeat")
    assert (await ours.page.ask("GET", "stream")).status_code == 429
    for each in streams:
        await each.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: not ours.dashboard.streams)


async def test_user_sees_own_vhosts_only(shown: Shown) -> None:
    await shown.declare("secret-orders")
    await shown.publish("secret-orders")
    await has_ready(shown, "secret-orders", 1)
    await shown.user("narrow", "management", permitted=False)
    async with shown.another_page("narrow") as page:
        assert (await page.get("queues"))["queues"] == []
        overview = await page.get("overview")
        assert overview["attention"] == []
        assert overview["totals"]["ready"] == 0
        assert "node_state" not in overview
        response = await page.ask("GET", f"history?vhost={shown.v}")
        assert response.status_code == 404
        stream = events(page)
        assert (await first(stream, "queues"))["queues"] == []
        await stream.aclose()  # type: ignore[attr-defined]
    await shown.management.delete("/api/users/narrow")


async def test_paused_queue_and_old_message_are_told(ours: Shown) -> None:
    await ours.declare("orders")
    await ours.publish("orders")
    assert (await ours.page.ask("PUT", f"api/queues/{ours.v}/orders/pause", {})).status_code == 204
    row = await has_ready(ours, "orders", 1)
    assert row["paused"] is True
    kinds = {each["kind"] for each in (await ours.page.get("overview"))["attention"]}
    assert "paused" in kinds


async def test_row_tells_the_age_of_the_oldest_message_until_it_is_gone(ours: Shown) -> None:
    await ours.declare("orders")
    await ours.publish("orders", "old")

    async def is_old() -> bool:
        return bool((await row_of(ours, "orders")).get("age", 0) >= 1)

    await eventually(is_old)
    await ours.publish("orders", "new")
    await has_ready(ours, "orders", 2)
    assert (await row_of(ours, "orders")).get("age", 0) >= 1
    body = {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}
    await ours.management.post(f"/api/queues/{ours.v}/orders/get", json=body)

    async def has_none() -> bool:
        return bool((await row_of(ours, "orders")).get("age", 0) == 0)

    await eventually(has_none)


async def test_broker_that_does_not_answer_is_reported() -> None:
    api = ManagementApi.over_http(f"http://127.0.0.1:{free_port()}")
    dashboard = Dashboard(api, api, Account(Credentials("guest", "secret")))
    listener = AsgiListener(make_application(dashboard), "127.0.0.1", 0)
    await listener.start()
    dashboard.start()
    page = Page(listener.url)
    async with page.client:
        login = {"user": "guest", "password": "secret"}
        response = await page.client.post("login", json=login)
    assert (response.status_code, response.json()["error"]) == (502, "unreachable")
    assert api.place in response.json()["reason"]
    await eventually(lambda: dashboard.sampler.failure)
    assert "cannot be reached" in dashboard.sampler.failure
    assert "secret" not in dashboard.sampler.failure
    await dashboard.stop()
    await listener.stop()


async def test_queue_is_described(shown: Shown) -> None:
    name = "or/ders %"
    arguments = {"x-message-ttl": 90_000_000, "x-max-length": 5000}
    await shown.declare(name, arguments=arguments)
    told = await shown.page.get(f"queues/{shown.v}/{encoded(name)}")
    assert told["queue"]["name"] == name
    texts = [each["text"] for each in told["words"]]
    assert "Messages expire after 1 day 1 h." in texts
    assert "It holds 5,000 ready messages at most." in texts
    assert told["bindings"] == []
    assert told["consumers"] == []
    assert ("in_flight" in told) is not shown.is_rabbitmq
    assert (await shown.page.ask("GET", f"queues/{shown.v}/missing")).status_code == 404


async def test_scripts_and_styles_are_small_and_kept_by_the_browser(ours: Shown) -> None:
    static = Path(application.__file__).parent / "static"
    files = [each.relative_to(static).as_posix() for each in static.rglob("*.*")]
    size = 0
    async with httpx.AsyncClient(base_url=ours.url) as browser:
        for name in files:
            async with browser.stream("GET", f"/static/{name}") as response:
                content = await response.aread()
                size += response.num_bytes_downloaded
            assert content == (static / name).read_bytes()
            assert response.headers["cache-control"] == "no-cache"  # it asks again
            known = {"If-None-Match": response.headers["etag"]}
            again = await browser.get(f"/static/{name}", headers=known)
            assert (again.status_code, again.content) == (304, b"")
        plain = await browser.get("/static/js/app.js", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
    assert size < 70_000


async def test_overview_of_a_thousand_busy_queues_is_small(ours: Shown) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    names = [f"shop.orders.region-{number:04}" for number in range(1_000)]
    queues = [
        {"name": name, "vhost": ours.vhost, "durable": True, "arguments": dead} for name in names
    ]
    response = await ours.management.post("/api/definitions", json={"queues": queues})
    assert response.status_code == 204, response.text
    async with ours.dashboard.links.open(Credentials("guest", "guest"), ours.vhost) as link:
        channel = await link.open_channel(confirm=True)
        await channel.publish([Outgoing("", name, b"x", Properties()) for name in names * 3])
        await channel.close()
    await ours.dashboard.sampler.look()
    paths = ("overview", "queues", "history?range=fine", "history?range=coarse")
    sizes = [len((await ours.page.ask("GET", path)).content) for path in paths]
    rows = (await ours.page.get("queues"))["queues"]
    assert sum(row.get("ready") == 3 for row in rows) == 1_000
    assert sum(sizes) < 300_000, sizes
