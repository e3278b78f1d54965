"""Options of the commands that serve HTTP."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_BASE_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")


def _base_path(text: str) -> str:
    path = text.rstrip("/")
    if not _BASE_PATH.fullmatch(path):
        raise typer.BadParameter("a path such as /broker, of letters, digits, '.', '_', '~', '-'")
    return path


BasePath = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Path of the dashboard behind a proxy, such as /broker.",
        show_default=False,
        callback=_base_path,
    ),
]


def http_address_of(text: str, option: str) -> tuple[str, int]:
    """Host and port to listen on.

    Raises:
        typer.BadParameter: `text` is not an address; `option` is at fault.
    """
    host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise typer.BadParameter("HOST:PORT, such as 127.0.0.1:15672", param_hint=option)
    return host.strip("[]") or "127.0.0.1", int(port)
