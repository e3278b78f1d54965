"""Contents checked against the model of their publication."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

from broker_client import Broker
from broker_client.errors import ConfigError, InvalidMessageError


class Order(BaseModel):
    id: int
    amount: Decimal = Field(gt=0, alias="Amount")


@dataclass
class Item:
    name: str
    count: int


HERE = __name__


def a_config(model: Any) -> dict[str, Any]:
    publication = {"queue": "q", "model": model}
    return {"vhosts": {"/": {"queues": {"q": {}}, "publications": {"orders": publication}}}}


@pytest.mark.parametrize(
    ("model", "content", "body"),
    [
        (Order, {"id": 7, "Amount": "1.50"}, b'{"id":7,"Amount":"1.50"}'),
        (Order, Order(id=7, Amount=Decimal("1.50")), b'{"id":7,"Amount":"1.50"}'),
        (Item, Item("a", 2), b'{"name":"a","count":2}'),
        (list[int], [1, 2], b"[1,2]"),
        (str, "a text", b'"a text"'),
        (Order, b'{"id": 7, "Amount": 2}', b'{"id": 7, "Amount": 2}'),
    ],
)
async def test_what_fits_is_published_as_json(model: Any, content: Any, body: bytes) -> None:
    async with Broker.create(a_config(model)) as broker:
        await (await broker.publish("orders", content))
        await broker.publish_many("orders", [content])
        channel = await (await broker.connect()).open_channel()
        for _ in range(2):
            delivery = await channel.get("q", no_ack=True)
            assert delivery is not None
            assert (delivery.body, delivery.properties.content_type) == (body, "application/json")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"id": 7}, "Amount: Field required"),
        ({"id": "secret", "Amount": -1}, "id: Input should be a valid integer.*; Amount: Input"),
        (b"secret", "content: Invalid JSON"),
    ],
)
async def test_what_does_not_fit_is_refused_with_the_place_and_without_the_content(
    content: Any, told: str
) -> None:
    async with Broker.create(a_config(Order)) as broker:
        for publish in (
            broker.publish("orders", content),
            broker.publish_many("orders", [content]),
        ):
            with pytest.raises(
                InvalidMessageError,
                match=rf"the content of publication 'orders' does not fit its model: {told}",
            ) as caught:
                await publish
            assert "secret" not in str(caught.value)
        assert await broker.purge() == 0


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("nowhere.models:Order", "publications.orders.model: there is no module 'nowhere.models'"),
        ("json:Nothing", "publications.orders.model: module 'json' has no 'Nothing'"),
        (object(), "publications.orders.model: pydantic cannot check"),
        ("Order", "is not the name of a type; write module:Name"),
    ],
)
async def test_invalid_model_is_refused_at_the_start(model: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        await Broker.create(a_config(model))


async def test_model_is_found_by_its_name() -> None:
    async with Broker.create(a_config("decimal:Decimal")) as broker:
        with pytest.raises(InvalidMessageError, match="does not fit its model"):
            await broker.publish("orders", "not a number")
