"""The fragments of docs/outbox.md run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker_client import Broker, Message
from tests.docs.documents import ROOT
from tests.docs.fragments import check_fragments


async def test_fragments_print_what_the_document_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    async with Broker.create("config/embedded.yaml") as broker:
        names: dict[str, Any] = {
            "asyncio": asyncio,
            "broker": broker,
            "Message": Message,
            "database_url": f"sqlite+aiosqlite:///{tmp_path}/app.db",
        }
        await check_fragments("docs/outbox.md", names)
        await names["engine"].dispose()
