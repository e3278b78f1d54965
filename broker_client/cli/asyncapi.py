"""``broker-client asyncapi``: describes what an application sends and receives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from broker_client.cli.node_file import failed, write_output
from broker_client.cli.program import NoProgramError, find_router
from broker_client.config.loader import load_config
from broker_client.consuming.handler_signature import Handler
from broker_client.errors import BrokerClientError
from broker_client.router import Router


def asyncapi(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|MODULE:NAME",
            help="A configuration; or a Router with one, such as app:router, whose handlers' "
            "models are described as well.",
            show_default=False,
        ),
    ],
    title: Annotated[
        str | None, typer.Option("--title", help="Name of the application.", show_default=False)
    ] = None,
    api_version: Annotated[
        str, typer.Option("--api-version", metavar="VERSION", help="Version of the application.")
    ] = "1.0.0",
    html: Annotated[
        bool, typer.Option("--html", help="Print an HTML page instead of JSON.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: standard output."
        ),
    ] = None,
) -> None:
    """Print an AsyncAPI 3.1 document of publications, subscriptions and their models."""
    # Here, since no other command needs the parts of pydantic that describe models.
    from broker_client.asyncapi.document import Info, asyncapi_document
    from broker_client.asyncapi.page import asyncapi_page

    handlers: dict[str, Handler] = {}
    try:
        if ":" in target and not Path(target).exists():
            router = find_router(target)
            assert router.config is not None, "find_router refuses one without"
            config, name = load_config(router.config), target.partition(":")[0]
            handlers = _only_handlers(router)
        else:
            config, name = load_config(Path(target)), Path(target).stem
        document = asyncapi_document(config, Info(title or name, api_version), handlers)
    except (BrokerClientError, NoProgramError) as error:
        raise failed(str(error)) from None
    text = asyncapi_page(document) if html else f"{json.dumps(document, indent=2)}\n"
    write_output(output, text)


def _only_handlers(router: Router) -> dict[str, Handler]:
    """The handlers of subscriptions with a single handler: its model is that of all messages."""
    collected = router.collected_handlers
    shared = Counter(name for name, _, _ in collected)
    return {
        name: handler
        for name, handler, options in collected
        if shared[name] == 1 and not (options.get("type") or options.get("headers"))
    }
