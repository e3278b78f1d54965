"""The fragments of docs/guide.md run, in order, and print what the guide shows."""

from __future__ import annotations

import pytest
import yaml

from broker_client import Broker
from broker_client.config.loader import load_config
from tests.docs.documents import ROOT, blocks, read
from tests.docs.fragments import check_fragments

GUIDE = "docs/guide.md"


async def test_fragments_print_what_the_guide_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    async with Broker.create("config/embedded.yaml") as broker:
        await check_fragments(GUIDE, {"broker": broker})


def test_first_yaml_of_the_guide_is_the_file_its_fragments_run_on() -> None:
    shown = next(block for block in blocks(GUIDE) if block.language == "yaml")
    assert "config/embedded.yaml" in read(GUIDE)
    assert load_config(yaml.safe_load(shown.text)) == load_config(ROOT / "config" / "embedded.yaml")
