"""What the dashboard holds: the API it shows, sessions, and what was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker_client.dashboard.api import Account, LoginRefusedError, ManagementApi
from broker_client.dashboard.audit import Audit
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.refusals import Refusal, no_session, not_permitted
from broker_client.dashboard.sessions import LoginLimit, Session, Sessions

OURS = "broker_client"
_FEATURES = ("pause", "in_flight", "deferred", "age", "latency")


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """Which broker this is."""

    name: str
    product: str
    """`broker_client` or `RabbitMQ`."""
    version: str

    @property
    def is_ours(self) -> bool:
        """It has what RabbitMQ has not."""
        return self.product == OURS


class Dashboard:
    """The state behind the pages. `start` it before requests come, `stop` it at the end."""

    def __init__(
        self,
        api: ManagementApi,
        watched: ManagementApi,
        watching: Account | None = None,
        *,
        base_path: str = "",
    ) -> None:
        """
        Args:
            api: that is asked for users, with their own login.
            watched: the same API, asked for samples.
            watching: by whom; None where `watched` knows.
            base_path: in front of all paths, such as ``/broker``.
        """
        self.api = api
        self.base_path = base_path
        self.sessions = Sessions()
        self.logins = LoginLimit()
        self.audit = Audit()

    def __repr__(self) -> str:
        return f"<Dashboard of {self.api.place}>"

    def start(self) -> None:
        """Begin to watch."""

    async def stop(self) -> None:
        """End sessions, streams and jobs. May be called more than once."""
        self.sessions.end_all("stopping")
        await self.api.close()

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
        return key, session

    async def refused(self, key: str, session: Session) -> Refusal:
        """What a 401 of the API means: the login is void by now, or the user lacks a right."""
        try:
            await self.api.get("whoami", session.account)
        except LoginRefusedError:
            self.sessions.end(key, "session_expired")
            return no_session()
        return not_permitted(f"the broker does not allow this to user {session.user!r}")

    async def describe(self, session: Session) -> dict[str, Any]:
        """What the page is told of the session."""
        broker = await self.broker(session)
        vhosts = await self.api.get("vhosts", session.account, "columns=name")
        return {
            "authenticated": True,
            "user": session.user,
            "tags": session.tags,
            "csrf": session.csrf,
            "expires_in": int(self.sessions.seconds_left(session)),
            "can": {
                "monitor": session.monitors,
                "manage_policies": session.has("policymaker", "administrator"),
                "administer": session.has("administrator"),
                "messages": False,
            },
            "vhosts": sorted(str(each["name"]) for each in vhosts),
            "broker": {
                "name": broker.name,
                "product": broker.product,
                "version": broker.version,
                "features": list(_FEATURES) if broker.is_ours else [],
            },
        }

    async def broker(self, session: Session) -> BrokerInfo:
        """Which broker it is, as the API tells this user."""
        columns = "columns=product_name,product_version,rabbitmq_version,cluster_name"
        told = await self.api.get("overview", session.account, columns)
        return BrokerInfo(
            str(told.get("cluster_name", "")),
            str(told.get("product_name", "RabbitMQ")),
            str(told.get("product_version") or told.get("rabbitmq_version", "")),
        )
