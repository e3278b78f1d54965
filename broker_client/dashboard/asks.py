"""A request of a logged-in user, and the table of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from broker_client.dashboard.dashboard import Dashboard
from broker_client.dashboard.requests import MAX_BODY_BYTES, address_of, json_of, name_of
from broker_client.dashboard.rights import Rights
from broker_client.dashboard.sessions import Session
from broker_client.runtime.slotted import slotted


@slotted
class Ask:
    """One request of a user."""

    dashboard: Dashboard
    session: Session
    key: str
    """Secret of the session's cookie."""
    request: Request

    def name(self, part: str) -> str:
        """The part of the path of that name, decoded."""
        return name_of(self.request, part)

    async def json(self, most: int = MAX_BODY_BYTES) -> dict[str, Any]:
        """The body, a JSON object of so many bytes at most."""
        return await json_of(self.request, most)

    async def get(self, path: str, query: str = "") -> Any:
        """The JSON that the API answers this user, to a GET."""
        return await self.dashboard.api.get(path, self.session.account, query)

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that the API answers this user, to a POST."""
        return await self.dashboard.api.post(path, self.session.account, body)

    async def rights(self) -> Rights:
        """The permissions of this user."""
        return await self.dashboard.rights_of(self.session)

    def record(self, action: str, target: str, outcome: int, detail: str = "") -> None:
        """Record in the audit what this user did."""
        address = address_of(self.request)
        self.dashboard.audit.record(self.session.user, address, action, target, outcome, detail)
        self.dashboard.news.tell()

    def vhost_and_queue(self) -> tuple[str, str]:
        return self.name("vhost"), self.name("queue")


Handler = Callable[[Ask], Awaitable[Any]]


@slotted
class Answering:
    """A method of a path below ``ui/``, and its handler."""

    methods: tuple[str, ...]
    path: str
    handler: Handler
    counts_as_use: bool
    """The user did something: the session is not idle."""


class Answers(list[Answering]):
    """A table, filled by decorators. A handler returns JSON, or a response."""

    def on(
        self, methods: str, path: str, *, counts_as_use: bool = True
    ) -> Callable[[Handler], Handler]:
        """The decorated handler answers `methods`, words, of `path`."""

        def add(handler: Handler) -> Handler:
            self.append(Answering(tuple(methods.split()), path, handler, counts_as_use))
            return handler

        return add
