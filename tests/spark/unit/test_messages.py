"""Rows as messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from broker_client.amqp.encode import publish_frames
from broker_client.config.publishing import PublicationConfig, PublicationOptions
from broker_client.errors import InvalidMessageError
from broker_client.message import PERSISTENT, TRANSIENT, Outgoing
from broker_client.spark.endpoints import Target
from broker_client.spark.errors import OptionError
from broker_client.spark.options import SinkOptions
from broker_client.spark.writing.message_ids import ContentIds
from broker_client.spark.writing.messages import MessageMaker, check_columns

TARGET = Target("ex", "key", None)


def options(**given: Any) -> SinkOptions:
    return SinkOptions(url="amqp://host", **given)


def made(columns: dict[str, pa.Array], **given: Any) -> list[Any]:
    maker = MessageMaker(options(**given), TARGET, ContentIds("scope", 0))
    return [each for some in maker.messages(pa.record_batch(columns)) for each in some]


def test_body_alone_goes_where_the_options_say() -> None:
    (message,) = made({"body": pa.array(["hello"])})
    assert (message.exchange, message.routing_key, message.body) == ("ex", "key", b"hello")
    assert message.mandatory
    assert message.properties.delivery_mode == PERSISTENT
    assert message.properties.message_id.endswith("-0")
    assert message == Outgoing("ex", "key", b"hello", message.properties, mandatory=True)


def test_row_says_otherwise_where_it_says_anything() -> None:
    first, second = made(
        {
            "body": pa.array([b"a", b"b"]),
            "exchange": pa.array(["other", None]),
            "routing_key": pa.array([None, "mine"]),
            "priority": pa.array([3, None]),
            "expiration": pa.array([1500, None]),
            "headers": pa.array([[("h", "1")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    assert (first.exchange, first.routing_key) == ("other", "key")
    assert (second.exchange, second.routing_key) == ("ex", "mine")
    assert (first.properties.priority, first.properties.expiration) == (3, "1500")
    assert first.properties.headers == {"h": "1"}
    assert second.properties.headers is None


def test_more_rows_than_are_made_at_a_time_keep_their_order_and_their_own_ids() -> None:
    numbers = list(range(2_500))
    messages = made({"body": pa.array([str(each % 10) for each in numbers]), "priority": numbers})
    assert [each.properties.priority for each in messages] == numbers
    assert [each.body for each in messages] == [str(each % 10).encode() for each in numbers]
    assert len({each.properties.message_id for each in messages}) == len(numbers)


def test_null_leaves_what_the_publication_says_and_headers_are_merged() -> None:
    options_ = PublicationOptions(headers={"a": "1"}, priority=5, content_type="text/x")
    publication = PublicationConfig(name="p", vhost="/", exchange="ex", options=options_)
    maker = MessageMaker(options(), Target("ex", "key", publication), ContentIds("scope", 0))
    columns = {
        "body": pa.array(["x", "y"]),
        "priority": pa.array([None, 3]),
        "content_type": pa.array([None, "text/y"]),
        "headers": pa.array([None, [("b", "2")]], pa.map_(pa.string(), pa.string())),
    }
    ((first, second),) = maker.messages(pa.record_batch(columns))
    assert first.properties[:3] == ("text/x", None, {"a": "1"})
    assert second.properties[:3] == ("text/y", None, {"a": "1", "b": "2"})
    assert [first.properties.priority, second.properties.priority] == [5, 3]


def test_message_id_column_is_used_and_null_gets_a_content_id() -> None:
    first, second = made({"body": pa.array(["x", "x"]), "message_id": pa.array(["mine", None])})
    assert first.properties.message_id == "mine"
    assert second.properties.message_id not in (None, "mine")


def test_null_id_is_refused_where_ids_are_a_column() -> None:
    columns = {"body": pa.array(["x"]), "key": pa.array([None], pa.string())}
    with pytest.raises(OptionError, match="every row needs an id"):
        made(columns, ids="column", id_column="key")


def test_content_ids_ignore_the_message_id_column_when_asked_for() -> None:
    (message,) = made({"body": pa.array(["x"]), "message_id": pa.array(["mine"])}, ids="content")
    assert message.properties.message_id != "mine"


def test_dedupe_header_repeats_the_id() -> None:
    (message,) = made({"body": pa.array(["x"])}, dedupe_header=True)
    assert message.properties.headers == {"x-deduplication-header": message.properties.message_id}


def test_transient_messages_when_asked_for() -> None:
    (message,) = made({"body": pa.array(["x"])}, persistent=False)
    assert message.properties.delivery_mode == TRANSIENT


def test_null_body_is_refused() -> None:
    with pytest.raises(OptionError, match="null"):
        made({"body": pa.array([None], pa.string())})


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        ({"value": "string"}, {}, "'body' is missing"),
        ({"body": "int"}, {}, "binary or string"),
        ({"body": "string", "routingkey": "string"}, {}, "did you mean 'routing_key'?"),
        ({"body": "string", "headers": "map<string,int>"}, {}, "map<string,string>"),
        ({"body": "string"}, {"ids": "column"}, "ids=column"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_published_are_refused(
    columns: dict[str, str], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError) as caught:
        check_columns(columns, options(**given))
    assert said in str(caught.value)


def test_unknown_columns_are_left_out_when_allowed() -> None:
    check_columns({"body": "string", "x": "int"}, options(ignore_unknown_columns=True))
    columns = {"body": pa.array(["a"]), "x": pa.array([1])}
    assert len(made(columns, ignore_unknown_columns=True)) == 1


def test_null_body_is_kept_apart_where_invalid_rows_are() -> None:
    bodies = pa.array([b"a", None])
    first, second = made({"body": bodies}, invalid="drop")
    assert (first.body, second.body) == (b"a", None)
    assert first.properties.message_id != second.properties.message_id


@pytest.mark.parametrize("micros", [253402300800000000, -62135596800000001, 2**63 - 1])
def test_time_that_python_cannot_hold_makes_its_message_invalid_and_no_other(micros: int) -> None:
    column = pa.array([0, micros], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    first, second = made({"body": pa.array([b"a", b"b"]), "timestamp": column})
    assert first.properties.timestamp == datetime(1970, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidMessageError, match="timestamp"):
        publish_frames(1, second, 0)
