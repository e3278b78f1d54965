"""The examples of docs/observability.md: log records name the message, and the recipes run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker_client import Broker
from broker_client.log_context import log_context
from tests.docs.documents import ROOT, blocks
from tests.docs.fragments import check_fragments
from tests.support.eventually import eventually

DOCUMENT = "docs/observability.md"
STRUCTLOG, JSON = (block.text for block in blocks(DOCUMENT) if block.language == "py")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EXPECTED = {"attempt": 1, "message_id": "m-7", "subscription": "fulfil", "trace_id": TRACE}


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    root, app = logging.getLogger(), logging.getLogger("app")
    before = root.handlers[:], root.level, app.handlers[:]
    yield
    root.handlers[:], app.handlers[:] = before[0], before[2]
    root.setLevel(before[1])
    structlog.reset_defaults()


async def handle_one(log_it: Any) -> None:
    """Handle the message m-7 with a function that logs."""
    async with Broker.create(ROOT / "config" / "embedded.yaml") as broker:
        broker.middleware("handle")(log_context)

        @broker.handle("fulfil")
        async def fulfil(order: Any) -> None:
            log_it()

        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        await (await broker.publish("orders", {"id": 7}, message_id="m-7", headers=headers))
        await eventually(lambda: broker.stats().subscriptions["fulfil"].acked == 1)


async def test_fragments_print_what_the_document_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    async with Broker.create("config/embedded.yaml") as broker:
        await check_fragments(DOCUMENT, {"broker": broker})


async def test_recipe_for_structlog_names_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    exec(STRUCTLOG, {})
    await handle_one(lambda: structlog.get_logger().info("late", order=7))
    structlog.get_logger().info("outside")
    late, outside = capsys.readouterr().out.splitlines()
    assert json.loads(late) == {**EXPECTED, "event": "late", "order": 7}
    assert json.loads(outside) == {"event": "outside"}


async def test_recipe_for_json_names_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    exec(JSON, {})
    await handle_one(lambda: logging.getLogger("app").warning("late"))
    logging.getLogger("app").warning("outside")
    late, outside = capsys.readouterr().err.splitlines()[-2:]
    assert json.loads(late) == {
        **EXPECTED,
        "levelname": "WARNING",
        "name": "app",
        "message": "late",
    }
    assert json.loads(outside)["message_id"] is None
