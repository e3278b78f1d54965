"""What a row of a frame becomes on its way to `publish_many`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker_client import Broker, PublishItem, load_config
from broker_client.spark.writing.frame_run import FrameRun
from broker_client.spark.writing.message_ids import ContentIds


def items_of(*rows: Sequence[Any], ids: ContentIds | None = None) -> list[Any]:
    vhost = {"queues": ["q"], "publications": {"p": {"queue": "q"}}}
    broker = Broker(load_config({"vhosts": {"/": vhost}}))
    return list(FrameRun(broker, "p", 10, ids, None).items(iter(rows)))


@pytest.mark.parametrize("content", ["text", b"bytes"])
def test_row_with_a_content_alone_becomes_that_content(content: str | bytes) -> None:
    assert items_of((content, None, None, None)) == [content]


@pytest.mark.parametrize(
    ("row", "item"),
    [
        (("x", "", None, None), PublishItem("x", "", {})),
        (("x", "k", None, {}), PublishItem("x", "k", {})),
        (("x", None, "m1", None), PublishItem("x", None, {"message_id": "m1"})),
        (("x", None, None, {"a": 1}), PublishItem("x", None, {"headers": {"a": 1}})),
    ],
    ids=["empty key", "key", "id", "headers"],
)
def test_row_with_more_becomes_an_item(row: Sequence[Any], item: PublishItem) -> None:
    made = items_of(row)
    assert made == [item]
    assert type(made[0]) is PublishItem


def test_row_of_a_named_write_gets_the_same_id_each_time() -> None:
    def made() -> list[Any]:
        return items_of(("x", None, None, None), ids=ContentIds("w", "frame", "p"))

    assert made()[0].options["message_id"]
    assert made() == made()
