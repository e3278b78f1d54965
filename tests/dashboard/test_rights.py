"""Actions that a user may not do are reported to the page, and refused by the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client.dashboard.rights import Rights
from tests.dashboard.conftest import Page, Shown, encoded, shown_rabbitmq
from tests.dashboard.test_messages import peeked
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

LIMITED = {"configure": "^own", "write": "^shop$", "read": "^(own|orders)"}


@pytest.fixture
async def limited(shown: Shown) -> AsyncIterator[Page]:
    """A user who may see everything, change ``own...``, read ``orders`` and publish to ``shop``."""
    async with a_limited_user(shown) as page:
        yield page


class a_limited_user:  # noqa: N801 - read as a sentence
    """A page of that user, with queues of the names that its permissions tell apart."""

    def __init__(self, shown: Shown) -> None:
        self._shown, self._page = shown, Page(shown.url)

    async def __aenter__(self) -> Page:
        shown = self._shown
        await shown.user("limited", "monitoring", permitted=False)
        path = f"/api/permissions/{shown.v}/limited"
        assert (await shown.management.put(path, json=LIMITED)).status_code in (201, 204)
        for queue in ("own", "orders", "others"):
            await shown.declare(queue)
            await shown.publish(queue, "x", properties={"message_id": "m"})
        await shown.management.put(f"/api/exchanges/{shown.v}/shop", json={"type": "topic"})
        await self._page.log_in("limited", "limited")
        return self._page

    async def __aexit__(self, *_raised: object) -> None:
        await self._page.client.aclose()
        await self._shown.management.delete("/api/users/limited")


async def lacking(page: Page, shown: Shown, kind: str, name: str) -> list[str]:
    told: dict[str, list[str]] = await page.get(f"{kind}/{shown.v}/{encoded(name)}")
    return told["lacking"]


async def test_page_is_told_which_permissions_its_user_lacks(shown: Shown, limited: Page) -> None:
    assert await lacking(limited, shown, "queues", "own") == ["publish"]
    assert await lacking(limited, shown, "queues", "orders") == ["configure", "publish"]
    assert await lacking(limited, shown, "queues", "others") == ["configure", "read", "publish"]
    assert await lacking(limited, shown, "exchanges", "shop") == []
    assert await lacking(limited, shown, "exchanges", "amq.default") == ["publish"]
    assert await lacking(limited, shown, "exchanges", "amq.topic") == ["publish"]
    # This one has no permissions in the vhost "/", but sees it.
    session = await limited.get("session")
    assert "/" in session["vhosts"]
    assert session["may_declare_in"] == [shown.vhost]


async def test_page_of_one_who_may_do_everything_lacks_nothing(shown: Shown) -> None:
    await shown.user("every", "management")
    await shown.declare("q")
    async with shown.another_page("every") as page:
        assert await lacking(page, shown, "queues", "q") == []
        assert await lacking(page, shown, "exchanges", "amq.default") == []
    await shown.management.delete("/api/users/every")


FORGED: list[tuple[str, str, Any]] = [
    ("DELETE", "api/queues/{v}/others", {}),
    ("DELETE", "api/queues/{v}/others/contents", {}),
    ("POST", "api/exchanges/{v}/amq.default/publish", {"routing_key": "others", "payload": "y"}),
    ("POST", "queues/{v}/others/peek", {}),
    ("POST", "queues/{v}/others/resend", {"key": "k", "routing_key": "own", "confirmed": True}),
    ("POST", "jobs", {"kind": "delete", "queue": "others"}),
    ("POST", "jobs", {"kind": "move", "queue": "others", "to": "own"}),
    ("POST", "jobs", {"kind": "replay", "queue": "others"}),
    ("PUT", "api/queues/{v}/new", {}),
    ("PUT", "api/users/another", {"password": "x", "tags": "administrator"}),
    ("DELETE", "api/users/limited", {}),
    ("PUT", "api/permissions/{v}/limited", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "api/policies/{v}/p", {"pattern": ".*", "definition": {"max-length": 1}}),
]


async def test_forged_change_without_the_permission_is_refused(shown: Shown, limited: Page) -> None:
    for method, path, body in FORGED:
        sent = {"vhost": shown.vhost, **body} if path == "jobs" else dict(body)
        if path.endswith("/publish"):
            sent |= {"properties": {}, "payload_encoding": "string"}
        response = await limited.ask(method, path.format(v=shown.v), sent)
        told = response.status_code, response.json()["error"]
        assert told == (403, "not_permitted"), (method, path, response.text)
    names = (await shown.management.get(f"/api/queues/{shown.v}?columns=name")).json()
    assert sorted(each["name"] for each in names) == ["orders", "others", "own"]
    assert [each["payload"] for each in await peeked(shown, "others")] == ["x"]


async def test_forged_deletion_of_messages_fails_and_deletes_none(
    shown: Shown, limited: Page
) -> None:
    order = {"kind": "delete", "vhost": shown.vhost, "queue": "others", "dry_run": False}
    job = await limited.post("jobs", order)

    async def has_ended() -> bool:
        return bool((await limited.get(f"jobs/{job['id']}"))["state"] != "running")

    await eventually(has_ended)
    found = await limited.get(f"jobs/{job['id']}")
    assert (found["state"], found["moved"]) == ("failed", 0)
    assert [each["payload"] for each in await peeked(shown, "others")] == ["x"]


async def test_forged_change_of_what_our_broker_has_beside_is_refused(ours: Shown) -> None:
    async with a_limited_user(ours) as page:
        for method, path in (
            ("PUT", "pause"),
            ("PUT", "resume"),
            ("POST", "deferred/run"),
            ("POST", "deferred/cancel"),
            ("POST", "purge"),
        ):
            response = await page.ask(method, f"api/queues/{ours.v}/others/{path}", {})
            assert response.status_code == 403, path
        assert "in_flight" not in await page.get(f"queues/{ours.v}/others")
        assert "in_flight" in await page.get(f"queues/{ours.v}/orders")


async def test_connection_of_another_user_is_closed_by_an_administrator_only(
    shown: Shown, limited: Page
) -> None:
    async with shown.dashboard.links.open(_guest(shown), shown.vhost):

        async def names() -> list[str]:
            found = (await shown.management.get("/api/connections")).json()
            return [each["name"] for each in found if each.get("vhost") == shown.vhost]

        await eventually(names)
        (name,) = await names()
        path = f"api/connections/{encoded(name)}"
        assert (await limited.ask("DELETE", path, {})).status_code == 403
        assert (await shown.page.ask("DELETE", path, {})).status_code == 204


def _guest(shown: Shown) -> Any:
    session = shown.dashboard.sessions.find(next(iter(shown.page.client.cookies.values())))
    assert session is not None
    return session.account.credentials


@pytest.mark.rabbitmq
async def test_rights_that_cannot_be_read_count_as_permitted(rabbitmq: RabbitMQ) -> None:
    async with shown_rabbitmq(rabbitmq, watching="watcher") as shown, a_limited_user(shown) as page:
        assert await lacking(page, shown, "queues", "others") == []
        response = await page.ask("DELETE", f"api/queues/{shown.v}/others", {})
        assert response.status_code == 403


async def test_permissions_taken_away_count_at_the_next_look_at_the_session(
    shown: Shown, limited: Page
) -> None:
    assert "publish" in await lacking(limited, shown, "queues", "own")
    path = f"/api/permissions/{shown.v}/limited"
    await shown.management.put(path, json={**LIMITED, "configure": "", "write": ".*"})
    await limited.get("session")
    assert await lacking(limited, shown, "queues", "own") == ["configure"]


async def test_tag_taken_away_shows_no_other_vhost_any_more(shown: Shown, limited: Page) -> None:
    assert "/" in (await limited.get("session"))["vhosts"]
    body = {"password": "limited", "tags": "management"}
    await shown.management.put("/api/users/limited", json=body)
    session = await limited.get("session")
    assert session["vhosts"] == [shown.vhost]
    assert not session["can"]["monitor"]
    assert "connections" not in (await limited.get("overview"))["totals"]


# --------------------------------------------------------------------------- patterns


def permitted(pattern: str, name: str) -> bool:
    each = {"vhost": "/", "configure": pattern, "write": pattern, "read": pattern}
    return Rights([each]).may("read", "/", name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*", "q", True),
        ("", "q", False),
        ("^$", "q", False),
        ("ord", "my-orders", True),
        ("^ord", "my-orders", False),
        (r"^test\-\d+\z", "test-12", True),
        ("(?i)^ORD", "orders", True),
        ("^ö", "öl", True),
        ("(", "q", True),  # not known here: the broker decides
        ("^(a|a)*$", "a" * 200 + "b", True),
    ],
)
def test_pattern_means_what_it_means_to_the_broker(pattern: str, name: str, expected: bool) -> None:
    assert permitted(pattern, name) is expected


def test_vhost_without_permissions_is_permitted_where_they_come_from_elsewhere() -> None:
    assert not Rights([]).may("read", "/", "q")
    assert Rights([], ["/"]).may("read", "/", "q")
    assert Rights([], ["/"]).may_declare_in("/")
    assert not Rights([]).may_declare_in("/")
