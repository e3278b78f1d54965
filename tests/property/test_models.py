"""A handler annotated with a model gets the value that was published as that model."""

from __future__ import annotations

import datetime
import enum
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from broker_client.codec.content import decode, encode
from broker_client.consuming.handler_signature import content_check


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(alias="Name")
    at: datetime.date


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    id: UUID
    at: datetime.datetime
    day: datetime.date
    hour: datetime.time
    lasting: datetime.timedelta
    pair: tuple[int, str]
    many: tuple[float, ...]
    tags: set[str]
    fixed: frozenset[int]
    colour: Colour
    size: Size
    price: Decimal
    raw: bytes
    by_number: dict[int, str]
    choice: Literal["a", "b"]
    either: int | str | None
    host: IPv4Address
    part: Part = Field(alias="thePart")
    parts: list[Part] = Field(serialization_alias="allParts", validation_alias="allParts")


class StrictOrder(Order):
    model_config = ConfigDict(strict=True)


text = st.text(st.characters(codec="utf-8"), max_size=10)
parts = st.builds(lambda name, at: Part(Name=name, at=at), text, st.dates())
fields: dict[str, st.SearchStrategy[Any]] = {
    "id": st.uuids(),
    "at": st.datetimes(timezones=st.just(datetime.UTC)),
    "day": st.dates(),
    "hour": st.times(),
    "lasting": st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6)),
    "pair": st.tuples(st.integers(-(2**60), 2**60), text),
    "many": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    "tags": st.sets(text, max_size=3),
    "fixed": st.frozensets(st.integers(-100, 100), max_size=3),
    "colour": st.sampled_from(Colour),
    "size": st.sampled_from(Size),
    "price": st.decimals(allow_nan=False, allow_infinity=False, places=4),
    "raw": st.binary(max_size=20),
    "by_number": st.dictionaries(st.integers(-100, 100), text, max_size=3),
    "choice": st.sampled_from(["a", "b"]),
    "either": st.none() | st.integers(-100, 100) | text,
    "host": st.ip_addresses(v=4),
    "thePart": parts,
    "allParts": st.lists(parts, max_size=3),
}


@pytest.mark.parametrize("model", [Order, StrictOrder])
@given(values=st.fixed_dictionaries(fields))
def test_model_comes_back_as_it_was(model: type[Order], values: dict[str, Any]) -> None:
    order = model(**values)
    body, content_type = encode(order)
    assert checked(model, decode(body, content_type)) == order


@given(values=st.lists(st.fixed_dictionaries(fields), max_size=2))
def test_list_of_models_comes_back_as_it_was(values: list[dict[str, Any]]) -> None:
    orders = [StrictOrder(**each) for each in values]
    body, content_type = encode(orders)
    assert checked(list[StrictOrder], decode(body, content_type)) == orders


@pytest.mark.parametrize(
    "value", [UUID(int=7), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), Colour.RED, (1, "a")]
)
def test_value_without_a_model_comes_back_as_it_was(value: Any) -> None:
    annotation = tuple[int, str] if isinstance(value, tuple) else type(value)
    body, content_type = encode(value)
    assert checked(annotation, decode(body, content_type)) == value


def checked(annotation: Any, content: Any) -> Any:
    """`content` as a handler with that annotation gets it."""
    check = content_check(checked, annotation)
    assert check is not None
    return check(content)
