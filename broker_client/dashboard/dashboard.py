"""State of the dashboard: the API, sessions, jobs and the audit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from broker_client.dashboard.api import Account, LoginRefusedError, ManagementApi, encoded
from broker_client.dashboard.audit import Audit
from broker_client.dashboard.broker_info import BrokerInfo
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.jobs import Jobs
from broker_client.dashboard.links import Links
from broker_client.dashboard.news import News
from broker_client.dashboard.refusals import Refusal, no_session, not_permitted
from broker_client.dashboard.rights import Rights
from broker_client.dashboard.rows import as_object
from broker_client.dashboard.sampler import Sampler
from broker_client.dashboard.sessions import IDLE_TIMEOUT, LoginLimit, Session, Sessions, tags_of
from broker_client.dashboard.turns import QueueTurns
from broker_client.dashboard.views import SharedEvents, Vhosts

_KNOWN_FOR = 15.0  # seconds


class Dashboard:
    """The state behind the pages. `start` it before requests come, `stop` it at the end."""

    def __init__(
        self,
        api: ManagementApi,
        watched: ManagementApi,
        watching: Account | None = None,
        *,
        amqp: str | None = None,
        connect: Callable[[], Awaitable[socket.socket]] | None = None,
        base_path: str = "",
    ) -> None:
        """
        Args:
            api: that is asked for users, with their own login.
            watched: the same API, asked for samples.
            watching: by whom; None where `watched` knows.
            amqp: URL of the broker without a login; moves of messages need it, or `connect`.
            connect: connects to a broker in this process.
            base_path: in front of all paths, such as ``/broker``.

        Raises:
            ValueError: `amqp` is not such a URL.
        """
        self.api = api
        self.base_path = base_path
        self.sessions: Sessions = Sessions()
        self.logins: LoginLimit = LoginLimit()
        self.audit: Audit = Audit()
        self.news: News = News()
        self.links: Links = Links(amqp, connect)
        self.turns: QueueTurns = QueueTurns()
        self.jobs: Jobs = Jobs(self.links, self.audit, self.news, self.turns)
        self.sampler: Sampler = Sampler(watched, watching or Account(None), self.news)
        self.shared: SharedEvents = SharedEvents()
        self.streams: Counter[str] = Counter()
        """Open streams, by cookie."""
        self._watched = watched
        self._watching = watching
        self._sampling: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Dashboard of {self.api.place}>"

    def start(self) -> None:
        """Begin to watch."""
        self._sampling = asyncio.create_task(self.sampler.run(), name="dashboard: sampler")

    async def stop(self) -> None:
        """End sessions, streams and jobs. May be called more than once."""
        self.sessions.end_all("stopping")
        self.news.tell()
        await self.jobs.stop_all()
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
            self._sampling = None
        await self.api.close()
        await self._watched.close()

    # ---------------------------------------------------------------- sessions

    async def log_in(self, credentials: Credentials, address: str) -> tuple[str, Session]:
        """Begin a session for a user whom the API knows; returns the cookie's secret too.

        Raises:
            Refusal: 401 where it does not know this login, 429 after too many that failed.
        """
        if self.logins.is_reached(address):
            raise Refusal(429, "too_many_requests", "too many logins failed: wait a minute")
        try:
            whoami = await self.api.get("whoami", Account(credentials, address))
        except LoginRefusedError:
            self.logins.failed(address)
            self.audit.record(credentials.user, address, "log in", "", 401)
            reason = "this user and password are not known here, or may not see the management API"
            raise Refusal(401, "login_failed", reason) from None
        key, session = self.sessions.add(credentials, address, whoami)
        self.audit.record(session.user, address, "log in", "", 200)
        self.news.tell()
        return key, session

    async def refused(self, key: str, session: Session) -> Refusal:
        """What a 401 of the API means: the login is void by now, or the user lacks a right."""
        session.forget()  # the page showed what the user may not do
        try:
            await self.api.get("whoami", session.account)
        except LoginRefusedError:
            self.sessions.end(key, "session_expired")
            return no_session()
        return not_permitted(f"the broker does not allow this to user {session.user!r}")

    async def describe(self, session: Session) -> dict[str, Any]:
        """The session, as sent to the page."""
        columns = "columns=product_name,product_version,rabbitmq_version,cluster_name"
        told = await self.api.get("overview", session.account, columns)
        session.forget()
        await self.refresh(session)
        return {
            "authenticated": True,
            "user": session.user,
            "tags": session.tags,
            "csrf": session.csrf,
            "expires_in": int(self.sessions.seconds_left(session)),
            "idle_timeout": int(IDLE_TIMEOUT),
            "can": {
                "monitor": session.monitors,
                "manage_policies": session.has("policymaker", "administrator"),
                "administer": session.has("administrator"),
                "messages": self.links.are_known,
            },
            "vhosts": sorted(session.vhosts),
            "may_declare_in": [
                vhost for vhost in sorted(session.vhosts) if session.rights.may_declare_in(vhost)
            ],
            "broker": BrokerInfo.of(told).as_json(),
        }

    async def vhosts_of(self, session: Session) -> Vhosts:
        """The vhosts that the user may see; None is all."""
        await self.refresh(session)
        return None if session.monitors else session.vhosts

    async def rights_of(self, session: Session) -> Rights:
        """The permissions of the user."""
        await self.refresh(session)
        return session.rights

    async def refresh(self, session: Session) -> None:
        """Refresh from the API what it says about the user, from time to time.

        Raises:
            LoginRefusedError: the login is void by now.
            Refusal: the API does not answer.
        """
        now = time.monotonic()
        if session.known_at is not None and now - session.known_at < _KNOWN_FOR:
            return
        whoami = await self.api.get("whoami", session.account)
        found = await self.api.get("vhosts", session.account, "columns=name")
        session.tags = tags_of(whoami)
        session.vhosts = frozenset(str(each["name"]) for each in found)
        permissions = await self._permissions(session, whoami)
        seen_by_permission = () if session.monitors else session.vhosts
        session.rights = Rights(permissions, seen_by_permission)
        session.known_at = now

    async def _permissions(self, session: Session, whoami: Any) -> list[Any] | None:
        """As the API lists them; None where it does not. Only an administrator may ask a RabbitMQ
        for them, so the account that watches asks for the others."""
        own = as_object(whoami.get("broker_client")).get("permissions")
        if own is not None:
            return list(own)
        path = f"users/{encoded(session.user)}/permissions"
        api, account = self.api, session.account
        if not session.has("administrator"):
            if self._watching is None:
                return None
            api, account = self._watched, self._watching
        try:
            listed: list[Any] = await api.get(path, account)
        except (LoginRefusedError, Refusal):
            return None
        return listed
