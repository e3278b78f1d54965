"""Headers keep AMQP types that JSON and Python lack when messages are edited or moved."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.amqp.tables import FrozenTable, replaced
from broker_client.dashboard.credentials import Credentials
from broker_client.message import Outgoing, Properties
from broker_client.moving.source import QueueSource
from tests.dashboard.conftest import Shown
from tests.dashboard.test_messages import job, peeked

GUEST = Credentials("guest", "guest")
TYPED = {
    "int8": b"b\x05",
    "int16": b"s\x00\x05",
    "int32": b"I\x00\x00\x00\x05",
    "int64": b"l\x00\x00\x00\x00\x00\x00\x00\x05",
    "beyond-2-to-53": b"l\x00\x20\x00\x00\x00\x00\x00\x01",
    "time": b"T\x00\x00\x00\x00\x65\x53\xf1\x00",
    "milliseconds": b"T\x00\x00\x01\x8b\xcf\xe5\x68\x00",
    "decimal": b"D\x02\x00\x00\x00\x7b",
    "text-as-bytes": b"x\x00\x00\x00\x01a",
    "bytes": b"x\x00\x00\x00\x03\xff\x00a",
    "single": b"f\x3f\x80\x00\x00",
    "double": b"d\x3f\xf0\x00\x00\x00\x00\x00\x00",
    "truth": b"t\x01",
    "nested": b"F\x00\x00\x00\x07\x01a" + b"s\x00\x05" + b"\x00V",
}

DIED = {"x-death": [{"queue": "other", "reason": "rejected", "count": 1, "exchange": ""}]}


def encoded(entries: dict[str, bytes]) -> FrozenTable:
    parts = [bytes((len(name),)) + name.encode() + value for name, value in entries.items()]
    data = b"".join(parts)
    return FrozenTable(len(data).to_bytes(4, "big") + data)


def entries_of(headers: Any) -> set[bytes]:
    """The entries of a table as they are on the wire, in no order."""
    assert isinstance(headers, FrozenTable)
    known = {name: bytes((len(name),)) + name.encode() + value for name, value in TYPED.items()}
    return {name.encode() for name, entry in known.items() if entry in headers.encoded}


async def with_typed_headers(shown: Shown) -> Any:
    """The message in the queue ``q`` as the page shows it."""
    await shown.declare("q")
    await shown.declare("other")
    properties = Properties(
        headers=replaced(encoded(TYPED), (), DIED), message_id="m", delivery_mode=2
    )
    async with shown.dashboard.links.open(GUEST, shown.vhost) as link:
        channel = await link.open_channel(confirm=True)
        await channel.publish([Outgoing("", "q", b"{}", properties)])
        await channel.close()
    (message,) = await peeked(shown, "q")
    return message


async def headers_in(shown: Shown, queue: str) -> Any:
    async with shown.dashboard.links.open(GUEST, shown.vhost) as link:
        link.keep_header_types()
        source = QueueSource(await link.open_channel(), queue)
        await source.start()
        (delivery,) = await source.next_batch(1)
        source.keep(delivery.delivery_tag)
        await source.close()
    return delivery.properties.headers


async def test_headers_keep_their_types_when_the_body_is_edited(shown: Shown) -> None:
    message = await with_typed_headers(shown)
    edit = {
        "key": message["key"],
        "routing_key": "other",
        "payload": '{"mended": true}',
        "kept_headers": sorted(message["headers"]),
        "confirmed": True,
    }
    told = await shown.page.post(f"queues/{shown.v}/q/resend", edit)
    assert told["taken"] is True
    assert (await peeked(shown, "other"))[0]["payload"] == '{"mended": true}'
    headers = await headers_in(shown, "other")
    assert entries_of(headers) == {name.encode() for name in TYPED}
    assert len(headers) == len(TYPED)  # no header about a death is left


async def test_headers_beside_one_that_is_edited_keep_their_types(shown: Shown) -> None:
    message = await with_typed_headers(shown)
    edit = {
        "key": message["key"],
        "routing_key": "other",
        "kept_headers": sorted(TYPED.keys() - {"truth", "single"}),
        "headers": {"truth": False},
        "confirmed": True,
    }
    await shown.page.post(f"queues/{shown.v}/q/resend", edit)
    assert (await peeked(shown, "other"))[0]["payload"] == "{}"  # none was given: as it was
    headers = await headers_in(shown, "other")
    assert entries_of(headers) == {name.encode() for name in TYPED.keys() - {"truth", "single"}}
    assert headers["truth"] is False
    assert "single" not in headers


@pytest.mark.parametrize("kind", ["move", "replay"])
async def test_headers_keep_their_types_when_messages_are_moved(shown: Shown, kind: str) -> None:
    await with_typed_headers(shown)
    to = {"to": "other"} if kind == "move" else {}
    done = await job(shown.page, kind, shown, "q", dry_run=False, **to)
    assert done["moved"] == 1
    headers = await headers_in(shown, "other")
    assert entries_of(headers) == {name.encode() for name in TYPED}


async def test_edit_that_is_tried_again_after_a_crash_leaves_one_copy(shown: Shown) -> None:
    await shown.declare("q")
    await shown.declare("other")
    await shown.publish("q", "old", properties={"message_id": "m"})
    (message,) = await peeked(shown, "q")
    body = {"count": 1, "ackmode": "reject_requeue_true", "encoding": "auto"}
    await shown.management.post(f"/api/queues/{shown.v}/q/get", json=body)  # it is redelivered
    await shown.publish("other", "new", properties={"message_id": "m"})  # what the first try left
    edit = {"key": message["key"], "routing_key": "other", "payload": "new", "confirmed": True}
    told = await shown.page.post(f"queues/{shown.v}/q/resend", edit)
    assert (told["routed"], told["taken"]) == (True, True)
    assert await peeked(shown, "q") == []
    assert [each["payload"] for each in await peeked(shown, "other")] == ["new"]
