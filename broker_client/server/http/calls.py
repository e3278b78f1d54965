"""One request as a handler sees it, and the table of handlers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.requests import Request

from broker_client.core.arguments import check_encodable
from broker_client.core.virtual_host import VirtualHost
from broker_client.runtime.pace import as_json, from_json
from broker_client.runtime.request_body import read_limited
from broker_client.runtime.slotted import slotted
from broker_client.server.http.callers import MANAGEMENT, Caller
from broker_client.server.http.errors import Refusal, bad_request, not_found

if TYPE_CHECKING:
    from broker_client.node.node import Node
    from broker_client.server.http.management import Management

MAX_BODY_BYTES = 20_000_000  # RabbitMQ's limit of a request
CREATED, NO_CONTENT = 201, 204


class Call:
    """One authenticated request."""

    def __init__(self, management: Management, caller: Caller, request: Request) -> None:
        """
        Args:
            management: that was asked.
            caller: who asks.
            request: what.
        """
        self.management: Management = management
        self.caller: Caller = caller
        self.request: Request = request
        self.node: Node = management.node
        self.query: Mapping[str, str] = request.query_params

    def name(self, part: str) -> str:
        """The part of the path of that name, decoded.

        Raises:
            Refusal: 400 where it is not UTF-8.
        """
        try:
            return unquote(self.request.path_params[part], errors="strict")
        except UnicodeDecodeError:
            raise bad_request(f"{part} is not UTF-8") from None

    def vhost(self) -> VirtualHost:
        """The vhost of the path.

        Raises:
            Refusal: 404 where there is none, and where the caller may not see it: as RabbitMQ 4.3,
                so that names of vhosts cannot be guessed.
        """
        name = self.name("vhost")
        found = self.node.view.vhost(name)
        if found is None or not self.caller.sees(name):
            raise not_found()
        return found

    def vhosts(self) -> list[VirtualHost]:
        """The vhost of the path, or without one all that the caller may see, by name."""
        if "vhost" in self.request.path_params:
            return [self.vhost()]
        return [each for each in self.node.view.vhosts() if self.caller.sees(each.name)]

    def watched_vhosts(self) -> list[VirtualHost]:
        """As `vhosts`, of those that the caller may watch."""
        watched = [each for each in self.node.view.vhosts() if self.caller.watches(each.name)]
        if "vhost" not in self.request.path_params:
            return watched
        wanted = [each for each in watched if each.name == self.name("vhost")]
        if not wanted:
            raise not_found()
        return wanted

    async def json(self) -> dict[str, Any]:
        """The body, an object; an empty one is an object without keys.

        Raises:
            Refusal: 400 where it is not JSON object, 413 where it is too long.
        """
        body = await self.body()
        if not body.strip():
            return {}
        decoded = decoded_json(body)
        if not isinstance(decoded, dict):
            raise bad_request("the body must be a JSON object")
        return decoded

    async def body(self) -> bytes:
        """The body.

        Raises:
            Refusal: 413 where it is too long.
        """
        return await read_body(self.request)


async def read_body(request: Request) -> bytes:
    """The body of `request`, of which no more is read than is allowed."""
    declared = request.headers.get("content-length", "")
    body = await read_limited(request.stream(), declared, MAX_BODY_BYTES)
    if body is None:
        raise Refusal(413, "too_large", f"a body may have {MAX_BODY_BYTES:,} bytes")
    return body


def decoded_json(body: bytes) -> Any:
    """What `body` is the JSON of.

    Raises:
        Refusal: 400 where it is not JSON, or holds what no text or number of JSON may be.
    """
    try:
        decoded = json.loads(body.decode(), parse_constant=_refuse_constant)
        if rb"\u" in body:
            json.dumps(decoded, ensure_ascii=False).encode()  # half a surrogate pair is not text
    except (ValueError, RecursionError):
        raise bad_request("the body is not valid JSON") from None
    return decoded


async def definitions_json(body: bytes) -> Any:
    """As `decoded_json`, in steps: definitions may be thousands of objects.

    Raises:
        Refusal: 400.
    """
    try:
        decoded = await from_json(body.decode(), _refuse_constant)
        if rb"\u" in body:
            (await as_json(decoded)).decode()  # half a surrogate pair is not text
    except (ValueError, RecursionError):
        raise bad_request("the body is not valid JSON") from None
    return decoded


def _refuse_constant(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity are Python's, not JSON's


Handler = Callable[[Call], Awaitable[Any]]


@slotted
class Operation:
    """A method of a path: who may call it, and its handler."""

    method: str
    path: str
    summary: str
    tag: str
    """That the caller needs."""
    handler: Handler
    status: int
    """When it went well."""
    body: tuple[str, ...] = ()
    """Keys of the object that is sent along."""
    is_list: bool = False
    """What the handler returns is filtered, sorted and cut into pages as the query asks for."""


class Operations(list[Operation]):
    """A table of operations, filled by decorators."""

    def get(self, path: str, summary: str, tag: str = MANAGEMENT) -> Callable[[Handler], Handler]:
        """The decorated handler answers GET with the object that it returns, as JSON."""
        return self._add("GET", path, summary, tag, 200, ())

    def listing(
        self, path: str, summary: str, tag: str = MANAGEMENT
    ) -> Callable[[Handler], Handler]:
        """The decorated handler answers GET with those that the query asks for of the objects
        that it returns."""
        return self._add("GET", path, summary, tag, 200, (), is_list=True)

    def put(
        self, path: str, summary: str, tag: str = MANAGEMENT, *, body: tuple[str, ...] = ()
    ) -> Callable[[Handler], Handler]:
        """The decorated handler answers PUT; it returns the status, 201 for something new."""
        return self._add("PUT", path, summary, tag, CREATED, body)

    def post(
        self,
        path: str,
        summary: str,
        tag: str = MANAGEMENT,
        *,
        body: tuple[str, ...] = (),
        status: int = 200,
    ) -> Callable[[Handler], Handler]:
        """The decorated handler answers POST."""
        return self._add("POST", path, summary, tag, status, body)

    def delete(
        self, path: str, summary: str, tag: str = MANAGEMENT
    ) -> Callable[[Handler], Handler]:
        """The decorated handler answers DELETE."""
        return self._add("DELETE", path, summary, tag, NO_CONTENT, ())

    def _add(
        self,
        method: str,
        path: str,
        summary: str,
        tag: str,
        status: int,
        body: tuple[str, ...],
        *,
        is_list: bool = False,
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.append(Operation(method, path, summary, tag, handler, status, body, is_list))
            return handler

        return add


def text(data: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text of a body.

    Raises:
        Refusal: 400 where it is missing, or no text.
    """
    value = data.get(key, default)
    if not isinstance(value, str):
        raise bad_request(f"{key} must be a string" if key in data else f"key_missing: {key}")
    return value


def flag(data: Mapping[str, Any], key: str, default: bool) -> bool:
    """A truth value of a body; RabbitMQ takes the words too.

    Raises:
        Refusal: 400 for anything else.
    """
    value = data.get(key, default)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise bad_request(f"{key} must be true or false")
    return value


def number(data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number of a body or query; some tools send it as text.

    Raises:
        Refusal: 400 where it is missing, or no number.
    """
    value = data.get(key, default)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(f"{key} must be a number" if key in data else f"key_missing: {key}")
    return value


_NUMBER = re.compile(r"-?[0-9]{1,18}")


def table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object of a body; an empty one where it is missing.

    Raises:
        Refusal: 400 for anything else.
    """
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise bad_request(f"{key} must be an object")
    return value


def arguments_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a declaration or binding.

    Raises:
        Refusal: 400 where they are not an object.
        ReplyError: 406 for a value that AMQP cannot carry.
    """
    arguments = table(data, "arguments")
    check_encodable(arguments)
    return arguments
