"""``broker-client dashboard``: the pages for a broker elsewhere, in front of its management API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from broker_client.cli.http_options import BasePath, http_address_of
from broker_client.cli.logs import LogLevel, log_to_stderr
from broker_client.cli.node_file import failed
from broker_client.cli.passwords import PasswordFile, password_of
from broker_client.cli.serve import loop_factory, stop_signals
from broker_client.config.url import (
    DEFAULT_PORTS,
    UrlParts,
    build_url,
    parse_management_url,
    parse_url,
)
from broker_client.errors import BrokerClientError, UnsupportedError, install_extra

if TYPE_CHECKING:
    from broker_client.dashboard.dashboard import Dashboard

_DEFAULT_USER = "guest"


def dashboard(
    management: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Of the management API: http://user@host:15672.",
            show_default=False,
        ),
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:15673",
    amqp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Of the broker itself, for moves: amqp://host:port. "
            "[default: amqp://, the host of --management, port 5672]",
            show_default=False,
        ),
    ] = None,
    base_path: BasePath = "",
    password_file: PasswordFile = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve the dashboard for RabbitMQ, or for a built-in broker on another machine.

    The dashboard watches the broker as the user of --management; the tag monitoring is enough,
    with permissions in the vhosts to show, if only empty ones.
    The password comes from the URL, --password-file, BROKER_CLIENT_PASSWORD or a prompt. People
    log in as their own users.
    """
    log_to_stderr(log_level)
    address = http_address_of(listen, "--listen")
    try:
        parts = parse_management_url(management)
    except ValueError as error:
        raise failed(f"--management: {error}") from None
    user = parts.user or _DEFAULT_USER
    amqp_url = _amqp_url(amqp, parts)
    try:
        _check_extra()  # before a password is asked for
        password = parts.password or password_of(user, password_file, is_new=False)
        made = _dashboard(parts, user, password, amqp_url, base_path)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(made, address))
    except BrokerClientError as error:
        raise failed(str(error)) from None


def _amqp_url(given: str | None, management: UrlParts) -> str:
    if given is None:
        amqp = UrlParts("amqp", management.hostname, DEFAULT_PORTS["amqp"])
        return build_url(amqp)
    try:
        parts = parse_url(given)
    except ValueError as error:
        raise failed(f"--amqp: {error}") from None
    if parts.scheme == "embedded":
        raise failed("--amqp: write an amqp:// or amqps:// address")
    if "@" in given:  # a user that is left out is guest
        raise failed("--amqp: leave out the login: messages are moved as the logged-in user")
    return given


def _check_extra() -> None:
    try:
        import broker_client.dashboard.application
        import broker_client.server.http.listener  # noqa: F401 - is there
    except ImportError as error:
        raise UnsupportedError("dashboard", install_extra("server")) from error


def _dashboard(parts: UrlParts, user: str, password: str, amqp: str, base_path: str) -> Dashboard:
    from broker_client.dashboard.api import Account, ManagementApi
    from broker_client.dashboard.credentials import Credentials
    from broker_client.dashboard.dashboard import Dashboard

    api = ManagementApi.over_http(
        build_url(parts._replace(user="", password="")).replace(":@", "", 1)
    )
    watching = Account(Credentials(user, password))
    return Dashboard(api, api, watching, amqp=amqp, base_path=base_path)


async def _serve(made: Dashboard, address: tuple[str, int]) -> None:
    from broker_client.dashboard.application import make_application
    from broker_client.server.http.listener import AsgiListener

    stop_asked = stop_signals()
    listener = AsgiListener(make_application(made), *address)
    await listener.start()
    made.start()
    typer.echo(f"dashboard {listener.url}{made.base_path}/ ({made.api.place})")
    try:
        await stop_asked.get()
    finally:
        await made.stop()
        await listener.stop()
