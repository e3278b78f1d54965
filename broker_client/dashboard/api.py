"""A management API as the dashboard asks it: over HTTP, or in this process.

Both are asked in one way. What a user may do is for the API to say: each request carries the
login of the one who asked.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import httpx
from starlette.types import ASGIApp

from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.refusals import (
    Refusal,
    bad_request,
    not_found,
    not_permitted,
    unreachable,
)
from broker_client.runtime.slotted import slotted

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_LIMITS = httpx.Limits(max_connections=50, max_keepalive_connections=10)
_CLIENT = "broker_client.client"
_IN_PROCESS = "http://in-process"
_ACCESS_REFUSED = "ACCESS_REFUSED"
"""In the reason of RabbitMQ's 400, where AMQP has refused what its API was asked for."""
_CONNECT_RETRIES = 1


class LoginRefusedError(Exception):
    """The API does not know this user and password, or refuses them (401)."""


class Answer(NamedTuple):
    """What the API has answered."""

    status: int
    body: bytes
    is_json: bool


@slotted
class Account:
    """The caller: a login, and the address of the browser."""

    credentials: Credentials | None
    """None if the API needs no login."""
    address: str = "127.0.0.1"


class ManagementApi:
    """Requests to one management API."""

    def __init__(self, client: httpx.AsyncClient, place: str) -> None:
        """
        Args:
            client: whose base URL is the API's, without ``/api``.
            place: for messages; without a login.
        """
        self._client = client
        self.place = place

    @classmethod
    def over_http(cls, url: str) -> ManagementApi:
        """The API at `url`, which has no login in it."""
        # What the system trusts, or SSL_CERT_FILE, as for AMQP; httpx has a list of its own.
        trusted = ssl.create_default_context()
        transport = httpx.AsyncHTTPTransport(
            verify=trusted, limits=_LIMITS, retries=_CONNECT_RETRIES, trust_env=False
        )
        client = httpx.AsyncClient(
            base_url=url, transport=transport, timeout=_TIMEOUT, trust_env=False
        )
        return cls(client, url)

    @classmethod
    def in_process(cls, application: ASGIApp) -> ManagementApi:
        """The API that `application` serves."""
        client = httpx.AsyncClient(base_url=_IN_PROCESS, transport=_InProcess(application))
        return cls(client, "this process")

    def __repr__(self) -> str:
        return f"<ManagementApi {self.place}>"

    async def close(self) -> None:
        await self._client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        account: Account,
        *,
        query: str = "",
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The API's answer, whatever its status.

        Args:
            method: of HTTP.
            path: below ``/api/``, with its names percent-encoded.
            account: who asks.
            query: of the URL, encoded.
            content: JSON.
            headers: further ones.

        Raises:
            Refusal: 400 for a path that cannot be, 502 where no answer came.
        """
        credentials = account.credentials
        sent = {"content-type": "application/json", **(headers or {})}
        if content:
            # RabbitMQ closes a connection whose request it refuses before reading the body, and
            # the next request on it would fail.
            sent["connection"] = "close"
        request = self._client.build_request(
            method,
            self._url(path, query),
            content=content or None,
            headers=sent,
            extensions={_CLIENT: account.address, "timeout": _TIMEOUT.as_dict()},
        )
        try:
            response = await self._client.send(
                request, auth=None if credentials is None else credentials.auth
            )
        except httpx.TimeoutException:
            raise unreachable(
                f"the management API at {self.place} did not answer in time"
            ) from None
        except httpx.HTTPError as error:
            reason = f"the management API at {self.place} cannot be reached: {error}"
            raise unreachable(reason) from None
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return Answer(response.status_code, response.content, is_json)

    def _url(self, path: str, query: str) -> httpx.URL:
        parts = path.split("/")
        if any(unquote(part) in (".", "..") for part in parts) or not path.isascii():
            raise bad_request("the path has a part that is not a name")
        base = self._client.base_url
        raw = base.raw_path.rstrip(b"/") + b"/api/" + path.encode("ascii")
        return base.copy_with(raw_path=raw + (b"?" + query.encode("ascii") if query else b""))

    async def body(self, path: str, account: Account, query: str = "") -> bytes:
        """What the API answers to a GET.

        Raises:
            Refusal: it refuses, or does not answer.
            LoginRefusedError: 401.
        """
        answer = await self.request("GET", path, account, query=query)
        check(answer)
        return answer.body

    async def get(self, path: str, account: Account, query: str = "") -> Any:
        """The JSON that the API answers to a GET.

        Raises:
            Refusal: it refuses, or does not answer.
            LoginRefusedError: 401.
        """
        return decoded(await self.body(path, account, query))

    async def post(self, path: str, account: Account, body: Any) -> Any:
        """The JSON that the API answers to a POST.

        Raises:
            Refusal: it refuses, or does not answer.
            LoginRefusedError: 401.
        """
        content = json.dumps(body, ensure_ascii=False).encode()
        answer = await self.request("POST", path, account, content=content)
        check(answer)
        return decoded(answer.body) if answer.body else None


def check(answer: Answer) -> None:
    """Refuse as the API has refused.

    Raises:
        Refusal: with the API's reason.
        LoginRefusedError: 401, which stands for rights that lack, too.
    """
    if answer.status < 400:
        if answer.body and not answer.is_json:
            raise unreachable("what answers there is not a management API")
        return
    if answer.status == 401:
        raise LoginRefusedError
    raise refusal_of(answer)


def refusal_of(answer: Answer) -> Refusal:
    """The dashboard's form of the API's refusal."""
    reason = _reason(answer)
    match answer.status:
        case 401 | 403:
            return not_permitted(reason or "the broker does not permit you to do this")
        case 404:
            return not_found()
        case 413:
            return Refusal(413, "too_large", reason)
        case 429:
            return Refusal(429, "too_many_requests", reason)
        case status if status >= 500:
            return Refusal(502, "unreachable", reason or f"the management API failed ({status})")
        case 400 if _ACCESS_REFUSED in reason:
            return not_permitted(reason)
    return bad_request(reason or f"the management API refused ({answer.status})")


def _reason(answer: Answer) -> str:
    try:
        told = json.loads(answer.body)
    except (ValueError, RecursionError):
        return ""
    reason = told.get("reason") if isinstance(told, dict) else None
    return str(reason) if reason else ""


def decoded(body: bytes) -> Any:
    """What `body` is the JSON of.

    Raises:
        Refusal: 502 where it is none.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise unreachable("the management API answered with something that is not JSON") from None


def encoded(name: str) -> str:
    """`name` as a part of a path."""
    return quote(name, safe="")


class _InProcess(httpx.AsyncBaseTransport):
    """Calls an ASGI application, which sees the address of the browser."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        address = request.extensions.get(_CLIENT, "127.0.0.1")
        transport = httpx.ASGITransport(self._application, client=(address, 0))
        response = await transport.handle_async_request(request)
        await asyncio.sleep(0)  # nothing else has given the loop away
        return response
