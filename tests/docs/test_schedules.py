"""The configuration of docs/schedules.md does what the document says."""

from __future__ import annotations

import asyncio
from typing import Any

import yaml

from broker_client import Message
from broker_client.testing.harness import harness
from broker_client.testing.virtual_time import VirtualTimeLoop
from tests.docs.documents import blocks


def test_configuration_of_the_document_publishes_at_its_times() -> None:
    [shown] = [block for block in blocks("docs/schedules.md") if block.language == "yaml"]
    found: list[tuple[str | None, Any]] = []

    async def run() -> None:
        async with harness(yaml.safe_load(shown.text), "embedded://") as made:

            @made.broker.handle("/reports")
            async def report(content: dict[str, str], message: Message) -> None:
                found.append((message.message_id, content))

            @made.broker.handle("/heartbeats")
            async def beat(content: dict[str, str], message: Message) -> None:
                assert content == {
                    "schedule": message.headers["x-schedule"],
                    "time": (message.message_id or "").partition("@")[2],
                }

            await asyncio.sleep(24 * 3600)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
    [(message_id, content)] = found
    assert content == {"kind": "daily"}
    assert message_id in ("nightly@2027-01-16T02:00:00Z", "nightly@2027-01-15T02:00:00Z")
