"""The log of commands that run until they are stopped."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]


def log_to_stderr(level: str) -> None:
    """Write records of `level` and above to standard error.

    Raises:
        typer.BadParameter: there is no such level.
    """
    if level.lower() not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter("debug, info, warning or error", param_hint="--log-level")
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=level.upper()
    )
    for library in ("httpx", "httpcore"):  # a line for each request, with what it asks for
        logging.getLogger(library).setLevel(logging.WARNING)
