"""Creates and checks vhosts over RabbitMQ's management API (as in rascal); lists what they hold.

urllib in a thread, and no HTTP client of its own: few requests are made, none while messages flow,
and such a client would be one more dependency of everybody's. Imported when it is used: urllib
brings some forty modules.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import quote

from broker_client.config import ManagementConfig
from broker_client.errors import ManagementError
from broker_client.runtime.tracebacks import without_frames

_NOT_FOUND = 404
_GRACE = 2.0  # seconds beyond `timeout`, which is for each step on the socket


class VhostManagement:
    """One vhost, over the management API of its broker.

    Every method raises ManagementError when the API does not answer, or refuses.

    Args:
        config: where the API is, and the login.
        vhost: its name.
        context: what to trust of an ``https`` API; None is what the system trusts.
    """

    def __init__(
        self, config: ManagementConfig, vhost: str, context: ssl.SSLContext | None = None
    ) -> None:
        self._config, self._vhost, self._context = config, vhost, context

    def __repr__(self) -> str:
        return f"<VhostManagement {self._config.masked_url}: {self._vhost}>"

    async def create(self) -> None:
        """Create the vhost unless it is there."""
        await self._request("PUT", "assert")

    async def check(self) -> None:
        """Fail unless the vhost is there."""
        await self._request("GET", "check")

    async def delete(self) -> None:
        """Delete the vhost and all in it, if it is there."""
        try:
            await self._request("DELETE", "delete")
        except ManagementError as error:
            if error.status != _NOT_FOUND:
                raise

    async def list_objects(self, kind: str) -> list[dict[str, Any]]:
        """The ``exchanges``, ``queues`` or ``bindings`` of the vhost, as the API describes them."""
        what = f"list {kind} of"
        body = await self._request("GET", what, kind)
        try:
            return objects_of(body, kind)
        except ValueError as error:
            address = self._config.address
            raise ManagementError(what, self._vhost, address, 0, str(error)) from None

    async def _request(self, method: str, what: str, kind: str = "vhosts") -> bytes:
        config, vhost = self._config, self._vhost
        path = f"{kind}/{quote(vhost, safe='')}"
        # The thread ends by its own time-out on the socket; looking up a host name has none.
        limit = config.timeout + _GRACE
        try:
            async with asyncio.timeout(limit):
                answer = await asyncio.to_thread(
                    fetch, config, method, path, vhost, what, self._context
                )
        except TimeoutError as error:
            reason = f"no answer within {limit:g} s"
            raise ManagementError(what, vhost, config.address, 0, reason) from without_frames(error)
        return answer.body


_KEYS = {
    "exchanges": {"name", "vhost", "type"},
    "queues": {"name", "vhost"},
    "bindings": {"vhost", "source", "destination", "destination_type", "routing_key"},
}
"""Keys that each object of a list has, by the kind of the list."""


def objects_of(body: bytes, kind: str) -> list[dict[str, Any]]:
    """The objects in an answer: ``exchanges``, ``queues`` or ``bindings``.

    Raises:
        ValueError: it is not such a list; says so.
    """
    found = _decoded(body)
    needed = _KEYS[kind]
    if isinstance(found, list) and all(
        isinstance(each, dict) and needed <= each.keys() for each in found
    ):
        return found
    raise ValueError(f"the answer is not a list of {kind}: is this a management API?")


def object_of(body: bytes, *keys: str) -> dict[str, Any]:
    """The object in an answer, which has `keys`.

    Raises:
        ValueError: it is not such an object; says so.
    """
    found = _decoded(body)
    if isinstance(found, dict) and found.keys() >= set(keys):
        return found
    raise ValueError(f"the answer has no {' or '.join(keys)}: is this a management API?")


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON: is this a management API?") from None


class ManagementAnswer(NamedTuple):
    """An answer of a management API."""

    body: bytes
    date: str
    """The header Date; "" without one."""


def fetch(
    config: ManagementConfig,
    method: str,
    path: str,
    vhost: str,
    what: str,
    context: ssl.SSLContext | None = None,
) -> ManagementAnswer:
    """The answer to one request, for which the calling thread waits.

    Args:
        config: where the API is, and the login.
        method: of HTTP.
        path: below ``/api/``.
        vhost: what is asked about, for errors.
        what: the operation, for errors.
        context: what to trust of an ``https`` API; None is what the system trusts.

    Raises:
        ManagementError: the API did not answer, or refused.
    """
    address = config.address
    request = _authorized(config, f"{address}/api/{path}", method)
    if config.scheme == "https" and context is None:
        context = ssl.create_default_context()
    # No proxy of the environment's and no redirect: both would take the password elsewhere.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirect(),
        *([urllib.request.HTTPSHandler(context=context)] if config.scheme == "https" else []),
    )
    try:
        with opener.open(request, timeout=config.timeout) as answer:
            return ManagementAnswer(answer.read(), answer.headers.get("date") or "")
    except urllib.error.HTTPError as error:
        with error:
            raise ManagementError(what, vhost, address, error.code, _reason(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise ManagementError(what, vhost, address, 0, _why(error)) from without_frames(error)


def _why(error: Exception) -> str:
    """Why there is no answer."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(reason, ssl.SSLCertVerificationError):
        ways = (
            "name the file of its authority in SSL_CERT_FILE, or in tls.cafile of a configuration"
        )
        return f"its certificate is not trusted ({reason.verify_message}): {ways}"
    if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":
        return "the server there does not use TLS: is it http://?"
    if type(reason) is http.client.BadStatusLine:
        said = str(reason)
        if said.startswith("AMQP"):
            return "an AMQP broker answers there; the usual port of its management API is 15672"
        return f"what answers there does not speak HTTP: {_printable(said)}"
    return str(reason)


def _reason(error: urllib.error.HTTPError) -> str:
    """The reason in the body of a refusal, or else that of the status, on one line."""
    try:
        reason = str(json.loads(error.read())["reason"])
    except (ValueError, RecursionError, KeyError, TypeError, OSError, http.client.HTTPException):
        reason = str(error.reason)
    return _printable(reason)


def _printable(said: str) -> str:
    """On one line; what answers may be anything, and a terminal obeys control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in said).split())


def _authorized(config: ManagementConfig, url: str, method: str) -> urllib.request.Request:
    """A request with the password in its headers, and in no frame that stays."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - http or https
    password = config.password.get_secret_value() if config.password else ""
    login = base64.b64encode(f"{config.user}:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {login}")
    request.add_header("Content-Type", "application/json")
    return request


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        return None
