"""Log lines of the server: one an event, in fields that programs can read.

A line is the event and ``key=value`` pairs, the values in JSON where they are not plain words, so
that nothing a client sends can begin a line of its own. No line has a password or a body.
"""

from __future__ import annotations

import json
import logging
import re

log: logging.Logger = logging.getLogger("broker_client.server")

_PLAIN = re.compile(r"[\w.:/@%+,\[\]-]+", re.ASCII)


def log_event(level: int, event: str, /, **fields: object) -> None:
    """Log `event`; fields that are None or empty are left out."""
    if log.isEnabledFor(level):
        given = {key: value for key, value in fields.items() if value not in (None, "")}
        pairs = " ".join(f"{key}={_shown(value)}" for key, value in given.items())
        log.log(level, "%s %s", event, pairs, extra={"event": event, "fields": given})


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
