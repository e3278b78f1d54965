"""Arguments that are paths of files."""

from __future__ import annotations

from pathlib import Path

import typer


def file_path(value: str) -> Path:
    """`path_of_file`, as a parser: a `Path` would have made something else of an address."""
    return Path(path_of_file(value))


def path_of_file(value: str) -> str:
    """Refuse an address in place of a path; the error does not repeat it, for its password.

    Raises:
        typer.BadParameter: says what to give.
    """
    scheme, separator, _ = value.partition("://")
    if not separator:
        return value
    text = f"{scheme}://... is an address; this takes the path of a file"
    if scheme.lower().startswith("amqp"):
        text += (
            ". A built-in broker keeps its messages in one; for RabbitMQ use its management, or "
            "stats() of a Broker"
        )
    elif scheme.lower() == "embedded":
        text += ": what follows embedded://"
    raise typer.BadParameter(text)
