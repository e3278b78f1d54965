"""``broker-client asyncapi``: its documents are checked by AsyncAPI's own parser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from broker_client.cli.main import app
from tests.support.npm import npm_home

CHECK = Path(__file__).parent / "asyncapi" / "check.js"
HOME = Path(sys.prefix) / "share" / "asyncapi"

CONFIG: dict[str, Any] = {
    "vhosts": {
        "/": {
            "connection": ["amqps://app:hidden@one.example", "amqp://app:hidden@[::1]:5679"],
            "exchanges": {
                "orders": {"type": "topic"},
                "delayed": {"type": "x-delayed-message"},
                "headers": {"type": "headers", "options": {"durable": False}},
            },
            "queues": {"work": {}, "mine": {"options": {"exclusive": True}}, "batches": {}},
            "bindings": ["orders[#] -> work"],
            "publications": {
                "placed": {
                    "exchange": "orders",
                    "routing_key": "order.placed",
                    "model": "shop_asyncapi:Order",
                    "options": {"priority": 3, "expiration": "1m", "type": "placed"},
                },
                "any key": {"exchange": "headers", "options": {"headers": {"v": 1}}},
                "later": {"exchange": "delayed"},
                "any/key": {"queue": "work", "options": {"content_encoding": "gzip"}},
            },
            "subscriptions": {
                "work": {"queue": "work", "content_type": "application/json"},
                "batches": {"queue": "batches", "batch": {"size": 10, "wait": "1s"}},
            },
        },
        "blue/green": {"connection": "embedded://", "queues": {"local": {}}},
    }
}
PROGRAM = '''
"""A program whose handlers have types."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal, Union
from uuid import UUID

from pydantic import BaseModel, Field

from broker_client import Message, Router

router = Router("app.yaml")


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Cash(BaseModel):
    kind: Literal["cash"]


class Order(BaseModel):
    """What a customer ordered."""

    id: UUID
    at: datetime
    amount: Decimal = Field(description="in euros", gt=0)
    payment: Annotated[Union[Card, Cash], Field(discriminator="kind")]
    place: tuple[float, float]
    parent: "Order | None" = None


class Receipt(BaseModel):
    number: int


@router.handle("work")
async def fulfil(order: Order) -> Receipt:
    """Ships an order <promptly>."""
    return Receipt(number=1)


@router.handle("batches")
async def together(orders: list[Order]) -> None: ...


@router.handle("/mine")
async def mine(message: Message, content: dict[str, int]) -> None: ...
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "shop_asyncapi.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_asyncapi", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def asyncapi_home() -> Path:
    """A folder with AsyncAPI's parser in its `node_modules`."""
    return npm_home(HOME, ["@asyncapi/parser@3"])


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["asyncapi", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_documents_are_valid_for_the_official_parser_which_finds_what_is_wrong(
    program: Path, asyncapi_home: Path
) -> None:
    wrong = json.loads(run("app.yaml"))
    wrong["channels"]["publication.placed"]["bindings"]["amqp"]["is"] = "stream"
    done = subprocess.run(
        ["node", str(CHECK)],
        env={**os.environ, "NODE_PATH": str(asyncapi_home / "node_modules")},
        input=json.dumps([run("shop_asyncapi:router"), run("app.yaml"), json.dumps(wrong)]),
        capture_output=True,
        text=True,
        check=True,
    )
    *right, found = json.loads(done.stdout)
    assert right == [{"version": "3.1.0", "problems": []}] * 2
    assert any("publication.placed" in problem for problem in found["problems"])


def test_document_says_what_is_sent_received_and_answered(program: Path) -> None:
    document = json.loads(run("shop_asyncapi:router", "--title", "shop", "--api-version", "2.1"))
    assert document["info"] == {"title": "shop", "version": "2.1"}
    assert {key: each["action"] for key, each in document["operations"].items()} == {
        "send.placed": "send",
        "send.any.20.key": "send",
        "send.later": "send",
        "send.any.2f.key": "send",
        "receive.work": "receive",
        "receive.batches": "receive",
        "receive..2f.mine": "receive",
    }
    channel = document["channels"]["publication.placed"]
    assert channel["address"] == "order.placed"
    assert channel["bindings"]["amqp"] == {
        "is": "routingKey",
        "exchange": {
            "name": "orders",
            "vhost": "/",
            "durable": True,
            "autoDelete": False,
            "type": "topic",
        },
        "bindingVersion": "0.3.0",
    }
    send = document["operations"]["send.placed"]["bindings"]["amqp"]
    assert (send["priority"], send["expiration"], send["deliveryMode"]) == (3, 60_000, 2)
    messages = document["components"]["messages"]
    # Schemas for writing and reading differ: a Decimal may also be read from a number.
    assert messages["placed"]["payload"] == {"$ref": "#/components/schemas/Order-Output"}
    assert messages["work.received"]["payload"] == {"$ref": "#/components/schemas/Order-Input"}
    order = document["components"]["schemas"]["Order-Output"]
    assert order["properties"]["payment"]["discriminator"] == "kind"
    assert order["properties"]["place"]["items"] == [{"type": "number"}] * 2
    assert document["operations"]["receive.work"]["description"] == "Ships an order <promptly>."
    assert document["operations"]["receive.work"]["reply"]["messages"] == [
        {"$ref": "#/channels/reply.work/messages/work.reply"}
    ]
    assert "reply" not in document["operations"]["receive.batches"]


def test_neither_form_has_a_login(program: Path) -> None:
    for form in (run("app.yaml"), run("app.yaml", "--html")):
        assert "one.example:5671" in form
        assert "hidden" not in form
        assert "app:" not in form


def test_page_is_whole_and_loads_nothing(program: Path, tmp_path: Path) -> None:
    run("shop_asyncapi:router", "--html", "-o", "api.html")
    page = (tmp_path / "api.html").read_text()
    assert "<h1>shop_asyncapi" in page
    assert "Ships an order &lt;promptly&gt;." in page
    assert "in euros" in page
    assert not re.findall(r"<(script|link|img|iframe)\b|\bsrc=|@import|url\(", page)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nowhere:router", "there is no module 'nowhere'"),
        ("missing.yaml", "missing.yaml"),
    ],
)
def test_target_that_is_not_there_is_named(program: Path, target: str, told: str) -> None:
    result = CliRunner().invoke(app, ["asyncapi", target])
    assert result.exit_code == 1
    assert told in result.stderr


def test_model_that_is_not_there_is_named(program: Path) -> None:
    text = (program / "app.yaml").read_text().replace("shop_asyncapi:Order", "shop_asyncapi:Ordre")
    (program / "app.yaml").write_text(text)
    result = CliRunner().invoke(app, ["asyncapi", "app.yaml"])
    assert result.exit_code == 1
    assert "publications.placed.model: module 'shop_asyncapi' has no 'Ordre'" in result.stderr
