"""Rules for names."""

from __future__ import annotations

MAX_NAME_BYTES = 255
"""AMQP 0-9-1 §4.2.5.3: of a short string."""


def name_problem(name: str) -> str | None:
    """Why `name` cannot be used, or None if AMQP can carry it and a file can keep it."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return None if size <= MAX_NAME_BYTES else f"is longer than {MAX_NAME_BYTES} bytes"
