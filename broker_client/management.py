"""Vhosts made and looked for over a RabbitMQ's management API (rascal R-015, R-016, R-027)."""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.error
import urllib.request
from urllib.parse import quote

from broker_client.config import ManagementConfig
from broker_client.errors import ManagementError

_NOT_FOUND = 404


async def assert_vhost(config: ManagementConfig, vhost: str) -> None:
    """Make `vhost` if it is not there.

    Raises:
        ManagementError: the API did not answer, or refused.
    """
    await _request(config, "PUT", vhost, "assert")


async def check_vhost(config: ManagementConfig, vhost: str) -> None:
    """Fail unless `vhost` is there.

    Raises:
        ManagementError: it is missing, or the API did not answer.
    """
    await _request(config, "GET", vhost, "check")


async def delete_vhost(config: ManagementConfig, vhost: str) -> None:
    """Delete `vhost` and all in it; one that is not there is no error.

    Raises:
        ManagementError: the API did not answer, or refused.
    """
    try:
        await _request(config, "DELETE", vhost, "delete")
    except ManagementError as error:
        if error.status != _NOT_FOUND:
            raise


async def _request(config: ManagementConfig, method: str, vhost: str, what: str) -> None:
    await asyncio.to_thread(_blocking_request, config, method, vhost, what)


def _blocking_request(config: ManagementConfig, method: str, vhost: str, what: str) -> None:
    masked = f"{config.scheme}://{config.hostname}:{config.port}"
    request = urllib.request.Request(  # noqa: S310 - the scheme is http or https
        f"{masked}/api/vhosts/{quote(vhost, safe='')}", method=method
    )
    password = config.password.get_secret_value() if config.password else ""
    login = base64.b64encode(f"{config.user}:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {login}")
    request.add_header("Content-Type", "application/json")
    context = ssl.create_default_context() if config.scheme == "https" else None
    # No proxy of the environment's and no redirect: both would take the password elsewhere.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirect(),
        *([urllib.request.HTTPSHandler(context=context)] if context else []),
    )
    try:
        with opener.open(request, timeout=config.timeout):
            return
    except urllib.error.HTTPError as error:
        with error:
            raise ManagementError(what, vhost, masked, error.code, error.reason) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ManagementError(what, vhost, masked, 0, str(reason)) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        return None
