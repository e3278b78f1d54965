"""``broker-client schema``."""

from __future__ import annotations

import json

import typer

from broker_client.config.schema import config_schema


def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    typer.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))
