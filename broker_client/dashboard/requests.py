"""One request of a browser: the cookie, the guards, and the body."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from broker_client.dashboard.refusals import Refusal, bad_request, forbidden
from broker_client.runtime.request_body import read_limited

CSRF_HEADER = "x-csrf-token"
MAX_BODY_BYTES = 1_000_000
MAX_MESSAGE_BYTES = 20_000_000
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
SAFE = ("GET", "HEAD")


def address_of(request: Request) -> str:
    """Of the browser; behind a proxy, what the proxy says of it."""
    return "127.0.0.1" if request.client is None else request.client.host


def base_path(request: Request) -> str:
    """What stands in front of our paths in the browser's address, without a slash at its end."""
    configured: str = request.scope.get("broker_client.base_path", "")
    given = request.headers.get("x-forwarded-prefix", "")
    if given and _PREFIX.fullmatch(given) and ".." not in given:
        return given.rstrip("/")
    return configured


def name_of(request: Request, part: str) -> str:
    """The part of the path of that name, decoded.

    Raises:
        Refusal: 400 where it is not UTF-8.
    """
    try:
        return unquote(request.path_params[part], errors="strict")
    except UnicodeDecodeError:
        raise bad_request(f"{part} is not UTF-8") from None


# --------------------------------------------------------------------------- cookie


def _cookie_name(request: Request) -> str:
    # Browsers keep cookies by host, not by port: two dashboards on one host must not share one.
    server = request.scope.get("server")
    return f"broker_client_session_{server[1] if server else 0}"


def cookie_of(request: Request) -> str:
    """The secret of the session; "" without one."""
    return request.cookies.get(_cookie_name(request), "")


def set_cookie(request: Request, response: Response, key: str) -> None:
    """Have the browser send `key` from now on; "" has it forget."""
    options: dict[str, Any] = {
        "path": f"{base_path(request)}/",
        "httponly": True,
        "samesite": "strict",
        "secure": request.url.scheme == "https",
    }
    if key:
        response.set_cookie(_cookie_name(request), key, **options)
    else:
        response.delete_cookie(_cookie_name(request), **options)


# --------------------------------------------------------------------------- guards


def refuse_other_sites(request: Request) -> None:
    """Refuse a change that the page of another site asks for.

    A browser says where a request comes from (https://developer.mozilla.org/docs/Web/HTTP/
    Reference/Headers/Sec-Fetch-Site); where it does not, its Origin must be our host.

    Raises:
        Refusal: 403.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    hosts = {request.headers.get("host", ""), request.headers.get("x-forwarded-host", "")} - {""}
    if site is not None:
        ours = site in ("same-origin", "none")
    else:
        ours = origin is None or urlsplit(origin).netloc in hosts
    if not ours:
        raise forbidden("a page of another site must not change anything here")


def check_csrf(request: Request, token: str) -> None:
    """Refuse a change that does not carry the session's token.

    Raises:
        Refusal: 403.
    """
    given = request.headers.get(CSRF_HEADER, "")
    if not secrets.compare_digest(given.encode(), token.encode()):
        raise forbidden("the header X-CSRF-Token is missing or old: reload the page")


# --------------------------------------------------------------------------- body


async def body_of(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    """The body of `request`, of which no more is read than is allowed.

    Raises:
        Refusal: 413 where it is longer than `most`.
    """
    declared = request.headers.get("content-length", "")
    body = await read_limited(request.stream(), declared, most)
    if body is None:
        raise Refusal(413, "too_large", f"a body may have {most:,} bytes")
    return body


def check_json_type(request: Request) -> None:
    """Refuse a form: a browser sends one for any page, but JSON for our own alone.

    Raises:
        Refusal: 415.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise Refusal(415, "unsupported_media_type", "the body must be application/json")


async def json_of(request: Request, most: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body, a JSON object; an empty body is an empty object.

    Raises:
        Refusal: 400 where it is none, 413 where it is too long, 415 for a form.
    """
    check_json_type(request)
    body = await body_of(request, most)
    if not body.strip():
        return {}
    try:
        decoded = json.loads(body)
        json.dumps(decoded, ensure_ascii=False, allow_nan=False).encode()  # half a surrogate pair
    except (ValueError, RecursionError):
        raise bad_request("the body is not valid JSON") from None
    if not isinstance(decoded, dict):
        raise bad_request("the body must be a JSON object")
    return decoded


def text(data: dict[str, Any], key: str, default: str | None = None) -> str:
    """A text of a body.

    Raises:
        Refusal: 400 where it is missing, or no text.
    """
    value = data.get(key, default)
    if not isinstance(value, str):
        raise bad_request(f"{key} must be a text")
    return value


def number(data: dict[str, Any], key: str, default: int | None, low: int, high: int) -> int | None:
    """A whole number of a body or a query.

    Raises:
        Refusal: 400 where it is none, or out of bounds.
    """
    value = data.get(key)
    if value is None:
        return default
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad_request(f"{key} must be a number from {low:,} to {high:,}")
    return value
