"""``broker-client doctor``: finds problems with a broker, and says what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict

import typer

from broker_client.cli.examinations import (
    Finding,
    examine_address,
    examine_file,
    examine_management,
)
from broker_client.cli.options import AsJson
from broker_client.cli.remote import silence_libraries
from broker_client.cli.steering import ByManagement, Management
from broker_client.cli.where import ConfigFile, Place, Url, VhostName, place_of


def doctor(
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """Check login, permissions, topology, quorum, alarms and clock of a broker.

    Changes nothing. Exits with status 1 if there is a problem.
    """
    place = place_of(url, config, vhost)
    is_well = True
    for finding in _findings(place, management):
        is_well = is_well and finding.verdict != "problem"
        if as_json:
            typer.echo(json.dumps(asdict(finding)))
            continue
        typer.echo(f"{finding.verdict:8} {finding.check:12} {finding.text}")
        if finding.advice:
            typer.echo(f"{'':21} -> {finding.advice}")
    if not is_well:
        raise typer.Exit(1)


def _findings(place: Place, management: str | None) -> Iterator[Finding]:
    if place.path:
        yield from examine_file(place)
        return
    silence_libraries()
    api = None if management is None else ByManagement(management, place.vhost)
    yield from asyncio.run(examine_address(place, passively=api is None))
    yield from examine_management(place, api)
