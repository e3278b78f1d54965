"""The log of commands that run until they are stopped."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

_OURS = "broker_client"

LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]


def log_to_stderr(level: str) -> None:
    """Write records of `level` and above to standard error.

    Raises:
        typer.BadParameter: there is no such level.
    """
    if level.lower() not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter("debug, info, warning or error", param_hint="--log-level")
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper())
    for library in ("httpx", "httpcore"):  # a line for each request, with what it asks for
        logging.getLogger(library).setLevel(logging.WARNING)


class _OneLine(logging.Formatter):
    """Shows control characters in our own messages as escapes.

    Names and reasons come from clients: a line break in one of them begins no line of the log.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        if record.name.partition(".")[0] == _OURS and not record.message.isprintable():
            record.message = "".join(
                each if each.isprintable() else ascii(each)[1:-1] for each in record.message
            )
        return super().formatMessage(record)
