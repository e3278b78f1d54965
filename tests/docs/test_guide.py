"""The fragments of docs/guide.md run, in order, and print what the guide shows."""

from __future__ import annotations

import re

import pytest
import yaml

from broker_client import Broker, Message, Publication, Subscription
from broker_client.config.loader import load_config
from broker_client.publishing.template import PublishOverrides
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


@pytest.mark.parametrize("kind", [Broker, Publication, Subscription])
def test_every_event_is_told_of(kind: type[Broker | Publication | Subscription]) -> None:
    words = set(re.findall(r"`(\w+)", read(GUIDE)))
    assert kind.EVENTS - words == set()


def test_every_option_of_a_publish_is_told_of() -> None:
    assert {
        each for each in PublishOverrides.__annotations__ if f"`{each}`" not in read(GUIDE)
    } == set()


def test_everything_a_message_has_is_told_of() -> None:
    public = {each for each in vars(Message) if not each.startswith("_")}
    words = set(re.findall(r"`(\w+)", read(GUIDE)))
    assert public - {"with_properties", "delivery"} - words == set()
