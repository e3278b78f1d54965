"""The caller: basic authentication, tags, and vhosts that a user may see."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request

from broker_client.core.access import ADMINISTRATOR, User
from broker_client.node.access_control import AccessControl
from broker_client.runtime.slotted import slotted
from broker_client.server.http.errors import Refusal, bad_request, not_authorized
from broker_client.server.login import is_loopback

MANAGEMENT, POLICYMAKER, MONITORING = "management", "policymaker", "monitoring"
_IMPLIED = {
    MANAGEMENT: {MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR},
    POLICYMAKER: {POLICYMAKER, ADMINISTRATOR},
    MONITORING: {MONITORING, ADMINISTRATOR},
    ADMINISTRATOR: {ADMINISTRATOR},
}
"""Required tag: the tags that satisfy it."""


@slotted
class Caller:
    """A user who has logged in over HTTP."""

    user: User
    access: AccessControl
    is_this_process: bool = False
    """True for the dashboard of the node itself, which samples all vhosts for its users."""

    @property
    def name(self) -> str:
        return self.user.name

    def has(self, tag: str) -> bool:
        """True where the user's tags are enough for what needs `tag`."""
        return not _IMPLIED[tag].isdisjoint(self.user.tags)

    def watches(self, vhost: str) -> bool:
        """True where the user may know of a vhost, its totals and who is connected."""
        return self.has(MONITORING) or self.access.may_use_vhost(self.name, vhost)

    def sees(self, vhost: str) -> bool:
        """True where the user may see what is in a vhost. RabbitMQ: `monitoring` is not enough."""
        if self.is_this_process or self.has(ADMINISTRATOR):
            return True
        return self.access.may_use_vhost(self.name, vhost)


def authenticated(request: Request, access: AccessControl) -> Caller:
    """The user whose name and password `request` carries.

    Raises:
        Refusal: 401, with no hint at what of the two is wrong; 400, it carries neither.
    """
    name, password = _credentials(request.headers.get("authorization", ""))
    user = access.authenticate(name, password)
    if user is None:
        raise not_authorized("Login failed")
    if access.is_loopback_only(user.name) and not _is_local(request):
        raise not_authorized("User can only log in via localhost")
    caller = Caller(user, access)
    if not caller.has(MANAGEMENT):
        raise not_authorized("Not management user")
    return caller


def refuse_other_sites(request: Request) -> None:
    """Refuse a change that the page of another site has a browser ask for.

    A browser sends its stored login whichever page causes the request; but it also says whose page
    that is (https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site).

    Raises:
        Refusal: 403.
    """
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc != host
    ):
        raise Refusal(403, "forbidden", "A page of another site must not change anything here")


def _credentials(header: str) -> tuple[str, str]:
    scheme, _, value = header.strip().partition(" ")
    if header and not value:
        raise bad_request("the header Authorization has no credentials")
    if scheme.lower() != "basic":
        raise not_authorized("Login failed")
    try:
        content = base64.b64decode(value.strip(), validate=True)
    except binascii.Error:
        raise bad_request("the credentials of the header Authorization are not base64") from None
    user, colon, password = content.partition(b":")
    if not colon:
        raise bad_request("the credentials of the header Authorization are not name:password")
    try:
        return user.decode(), password.decode()
    except UnicodeDecodeError:
        raise not_authorized("Login failed") from None


def _is_local(request: Request) -> bool:
    return request.client is None or is_loopback(request.client.host)  # None: a Unix socket
