"""Login, sessions and their end; who may do what; what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.sessions import IDLE_TIMEOUT, LIFETIME, Sessions
from tests.dashboard.conftest import Page, Shown, encoded, shown_node

HOSTILE_NAMES = ["<script>alert(1)</script>", "a/b", "50%", "ünï", "q?x#y", '"onload="x']


async def refusal(page: Page, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and error code of a refusal, which is JSON."""
    response = await page.ask(method, path, body)
    assert response.headers["content-type"] == "application/json"
    return response.status_code, response.json()["error"]


async def test_login_tells_who_and_where_one_is(shown: Shown) -> None:
    session = await shown.page.get("session")
    assert session["authenticated"] is True
    assert (session["user"], session["tags"]) == ("guest", ["administrator"])
    assert session["can"]["administer"]
    assert shown.vhost in session["vhosts"]
    assert session["broker"]["product"] == ("RabbitMQ" if shown.is_rabbitmq else "broker_client")
    assert ("deferred" in session["broker"]["features"]) is not shown.is_rabbitmq


async def test_cookie_is_out_of_reach_of_scripts_and_other_sites(ours: Shown) -> None:
    async with ours.another_page() as page:
        body = {"user": "guest", "password": "guest"}
        response = await page.client.post("login", json=body)
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/;" in cookie
    assert "secure" not in cookie  # plain HTTP on loopback
    assert "guest" not in cookie


async def test_cookie_is_secure_where_a_proxy_speaks_tls(ours: Shown) -> None:
    async with ours.another_page() as page:
        headers = {"x-forwarded-proto": "https", "x-forwarded-prefix": "/broker"}
        body = {"user": "guest", "password": "guest"}
        response = await page.client.post("login", json=body, headers=headers)
    cookie = response.headers["set-cookie"].lower()
    assert "secure" in cookie
    assert "path=/broker/;" in cookie


@pytest.mark.parametrize("given", [("guest", "wrong"), ("nobody", "x"), ("", "")])
async def test_wrong_login_is_refused(shown: Shown, given: tuple[str, str]) -> None:
    async with shown.another_page() as page:
        body = {"user": given[0], "password": given[1]}
        assert await refusal(page, "POST", "login", body) == (401, "login_failed")
        assert (await page.get("session")) == {"authenticated": False}


async def test_logins_are_limited_by_address(shown: Shown) -> None:
    async with shown.another_page() as page:
        wrong = {"user": "guest", "password": "wrong"}
        answers = [await refusal(page, "POST", "login", wrong) for _ in range(6)]
        assert answers == [(401, "login_failed")] * 5 + [(429, "too_many_requests")]
        right = {"user": "guest", "password": "guest"}
        assert (await refusal(page, "POST", "login", right))[0] == 429


async def test_without_a_session_nothing_is_shown(ours: Shown) -> None:
    async with ours.another_page() as page:
        assert await refusal(page, "GET", "api/overview") == (401, "no_session")
        assert await refusal(page, "DELETE", "api/queues/%2F/q") == (401, "no_session")


async def test_logout_ends_the_session_and_its_cookie(ours: Shown) -> None:
    page, key = ours.page, dict(ours.page.client.cookies)
    assert (await page.ask("POST", "logout", {})).status_code == 204
    page.client.cookies.update(key)  # an attacker kept it
    assert await refusal(page, "GET", "api/overview") == (401, "no_session")


async def test_each_login_has_a_new_cookie_and_token(ours: Shown) -> None:
    before = (dict(ours.page.client.cookies), ours.page.csrf)
    await ours.page.log_in()
    assert dict(ours.page.client.cookies) != before[0]
    assert ours.page.csrf != before[1]


async def test_session_ends_when_the_password_changes(shown: Shown) -> None:
    await shown.user("changing", "management")
    async with shown.another_page("changing") as page:
        await page.get("api/overview")
        body = {"password": "other", "tags": "management"}
        await shown.management.put("/api/users/changing", json=body)
        assert await refusal(page, "GET", "api/overview") == (401, "no_session")
        assert await page.get("session") == {"authenticated": False}
    await shown.management.delete("/api/users/changing")


async def test_user_without_a_tag_cannot_log_in(shown: Shown) -> None:
    await shown.user("untagged", "")
    async with shown.another_page() as page:
        body = {"user": "untagged", "password": "untagged"}
        assert await refusal(page, "POST", "login", body) == (401, "login_failed")
    await shown.management.delete("/api/users/untagged")


async def test_right_that_lacks_is_403_and_the_session_goes_on(shown: Shown) -> None:
    await shown.user("viewer", "management", permitted=False)
    async with shown.another_page("viewer") as page:
        session = await page.get("session")
        assert not any(session["can"][each] for each in ("monitor", "administer"))
        assert shown.vhost not in session["vhosts"]
        assert await refusal(page, "GET", "api/users") == (403, "not_permitted")
        path = f"api/queues/{shown.v}/q"
        refused = await refusal(page, "PUT", path, {})
        hidden = (404, "not_found")  # as RabbitMQ 4, ours does not say that there is such a vhost
        assert refused == hidden or (shown.is_rabbitmq and refused == (403, "not_permitted"))
        await page.get("api/whoami")
    await shown.management.delete("/api/users/viewer")


# --------------------------------------------------------------------------- expiry, by the clock


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_session(sessions: Sessions) -> str:
    return sessions.add(Credentials("u", "p"), "1.2.3.4", {"name": "u", "tags": ""})[0]


def test_session_ends_when_it_is_idle() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    key = a_session(sessions)
    clock.now = IDLE_TIMEOUT - 1
    assert sessions.find(key) is not None
    clock.now += IDLE_TIMEOUT - 1
    found = sessions.find(key, use=False)
    assert found is not None
    clock.now += 1
    assert sessions.find(key) is None
    assert found.end_reason == "session_expired"


def test_session_ends_however_busy_it_is() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    key = a_session(sessions)
    while clock.now < LIFETIME:
        assert sessions.find(key) is not None
        clock.now += IDLE_TIMEOUT / 2
    assert sessions.find(key) is None


def test_sessions_are_bounded_and_the_least_used_goes_first() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    first, second = a_session(sessions), a_session(sessions)
    clock.now = 1
    sessions.find(first)
    for _ in range(999):
        a_session(sessions)
    assert len(sessions) == 1000
    assert sessions.find(first) is not None
    assert sessions.find(second) is None


# --------------------------------------------------------------------------- attacks


async def test_change_without_the_token_is_refused(ours: Shown) -> None:
    page = ours.page
    for token in ("", "wrong", page.csrf[:-1]):
        headers = {"x-csrf-token": token}
        response = await page.client.put(f"api/queues/{ours.v}/q", json={}, headers=headers)
        assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    response = await ours.management.get(f"/api/queues/{ours.v}")
    assert response.json() == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
async def test_change_by_another_site_is_refused(ours: Shown, headers: dict[str, str]) -> None:
    page = ours.page
    sent = {"x-csrf-token": page.csrf, **headers}
    response = await page.client.put(f"api/queues/{ours.v}/q", json={}, headers=sent)
    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    login = {"user": "guest", "password": "guest"}
    response = await page.client.post("login", json=login, headers=headers)
    assert response.status_code == 403


async def test_our_own_origin_may_change(ours: Shown) -> None:
    headers = {"x-csrf-token": ours.page.csrf, "origin": ours.url, "sec-fetch-site": "same-origin"}
    response = await ours.page.client.put(f"api/queues/{ours.v}/q", json={}, headers=headers)
    assert response.status_code == 201


async def test_form_is_refused(ours: Shown) -> None:
    page = ours.page
    response = await page.client.post("login", data={"user": "guest", "password": "guest"})
    assert (response.status_code, response.json()["error"]) == (415, "unsupported_media_type")
    headers = {"x-csrf-token": page.csrf}
    path = f"api/exchanges/{ours.v}/amq.default/publish"
    response = await page.client.post(path, data={"payload": "x"}, headers=headers)
    assert response.status_code == 415


async def test_oversized_body_is_refused(ours: Shown) -> None:
    async with ours.another_page() as page:
        login = {"user": "guest", "password": "x" * 20_000}
        assert await refusal(page, "POST", "login", login) == (413, "too_large")
    headers = {"x-csrf-token": ours.page.csrf, "content-type": "application/json"}

    async def endless() -> Any:
        for _ in range(25):
            yield b"x" * 1_000_000

    path = f"api/exchanges/{ours.v}/amq.default/publish"
    response = await ours.page.client.post(path, content=endless(), headers=headers)
    assert (response.status_code, response.json()["error"]) == (413, "too_large")


@pytest.mark.parametrize("body", [b"[]", b"{", b"NaN", b'{"user": 1, "password": "x"}', b"\xff"])
async def test_login_that_is_no_login_is_refused(ours: Shown, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await ours.page.client.post("login", content=body, headers=headers)
    assert (response.status_code, response.json()["error"]) == (400, "bad_request")


async def as_sent(shown: Shown, path: str) -> tuple[int, str]:
    """Status and body of a path that is sent unnormalized."""
    url = httpx.URL(shown.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    cookie = "; ".join(f"{name}={value}" for name, value in shown.page.client.cookies.items())
    head = f"GET {path} HTTP/1.1\r\nHost: {url.netloc.decode()}\r\nCookie: {cookie}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static/..%2fapplication.py",
        "/static/%2e%2e%2fapplication.py",
        "/static//etc/passwd",
        "/static/....//application.py",
        "/static/..\\application.py",
        "/application.py",
        "/static/",
    ],
)
async def test_only_static_files_are_served(ours: Shown, path: str) -> None:
    status, text = await as_sent(ours, path)
    assert status == 404
    assert "import" not in text


@pytest.mark.parametrize("path", ["api/../ui/session", "api/./overview", "api/x/%2e%2e/users"])
async def test_path_that_climbs_reaches_nothing(shown: Shown, path: str) -> None:
    status, text = await as_sent(shown, f"/ui/{path}")
    assert status == 400, text


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_hostile_name_comes_back_as_json(shown: Shown, name: str) -> None:
    path = f"api/queues/{shown.v}/{encoded(name)}"
    assert (await shown.page.ask("PUT", path, {})).status_code == 201
    response = await shown.page.ask("GET", path)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.json()["name"] == name


async def test_every_page_is_strict(ours: Shown) -> None:
    index = await ours.page.client.get(f"{ours.url}/")
    assert index.status_code == 200
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    for response in (index, await ours.page.ask("GET", "session")):
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    assert (await ours.page.ask("GET", "session")).headers["cache-control"] == "no-store"


async def test_api_beside_the_dashboard_is_as_ever(ours: Shown) -> None:
    assert (await ours.management.get("/api/whoami")).json()["name"] == "guest"
    assert (await ours.page.client.get(f"{ours.url}/health/live")).text == "ok\n"


async def test_base_path_is_in_front_of_everything() -> None:
    async with shown_node("/broker") as shown:
        assert (await shown.page.get("session"))["authenticated"]
        client = shown.page.client
        assert (await client.get(f"{shown.url}/")).status_code == 200
        redirected = await client.get(shown.url)
        assert (redirected.status_code, redirected.headers["location"]) == (308, "/broker/")


async def test_no_repr_shows_a_password(ours: Shown) -> None:
    key = next(iter(ours.page.client.cookies.values()))
    session = ours.dashboard.sessions.find(key)
    assert session is not None
    shown_text = repr((session, session.account, session.account.credentials, ours.dashboard))
    assert "'guest'" in shown_text  # the name
    credentials = session.account.credentials
    assert credentials is not None
    assert repr(credentials) == "<Credentials of 'guest'>"


async def test_changes_are_logged_and_reads_are_not(
    ours: Shown, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "broker_client.dashboard.audit")
    await ours.page.get(f"api/queues/{ours.v}")
    await ours.page.ask("PUT", f"api/queues/{ours.v}/orders", {})
    await ours.page.ask("DELETE", f"api/queues/{ours.v}/missing", {})
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == 2
    assert "'guest' from 127.0.0.1: declare" in lines[0]
    assert "orders" in lines[0]
    assert ": delete" in lines[1]
    assert lines[1].endswith("404 ")
