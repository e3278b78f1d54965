"""The fragments of docs/middleware.md run."""

from __future__ import annotations

import dataclasses
import re

import pytest

from broker_client import Broker, HandleCall, PublishCall
from broker_client.consuming.delivery import DeliveryOutcome
from tests.docs.documents import ROOT, read
from tests.docs.fragments import check_fragments

DOCUMENT = "docs/middleware.md"


async def test_fragments_print_what_the_document_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    async with Broker.create("config/embedded.yaml") as broker:
        await check_fragments(DOCUMENT, {"broker": broker})


@pytest.mark.parametrize("kind", [PublishCall, HandleCall])
def test_every_field_of_a_call_is_told_of(kind: type[PublishCall | HandleCall]) -> None:
    words = set(re.findall(r"`(\w+)", read(DOCUMENT)))
    fields = {each.name for each in dataclasses.fields(kind) if not each.name.startswith("_")}
    assert fields - words == set()


def test_every_outcome_is_told_of() -> None:
    assert {each for each in DeliveryOutcome if f"`{each}`" not in read(DOCUMENT)} == set()
