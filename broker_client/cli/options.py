"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print lines of JSON.")]
AsJsonLine = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Maximum number of messages.")]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="Maximum number of messages.", show_default=False),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", min=0.1, help="Maximum number of messages per second.", show_default=False
    ),
]
