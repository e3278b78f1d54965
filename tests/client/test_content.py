"""Codecs by content type, and compressed bodies, through the whole client on every broker."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import zstandard

from broker_client import AckOrNack, Broker, Message
from broker_client.codec.registry import (
    Codec,
    codec_of,
    msgpack_codec,
    protobuf_codec,
    register_codec,
)
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError, InvalidContentError
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually

LIMIT = 100_000
CONTENT = {"id": 7, "lines": ["a"] * 1000}


def a_config(**publication: Any) -> dict[str, Any]:
    subscription = {"queue": "q", "decompress": LIMIT}
    return {
        "queues": {"q": {}, "raw": {}},
        "publications": {"orders": {"queue": "q", **publication}, "other": {"queue": "q"}},
        "subscriptions": {"q": subscription, "raw": {"queue": "raw"}},
    }


async def received(broker: Broker, name: str = "q") -> tuple[Message, Any]:
    """The next message that is handled, and its content."""
    got: asyncio.Future[tuple[Message, Any]] = asyncio.get_running_loop().create_future()

    async def take(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        if not got.done():
            got.set_result((message, content))

    subscription = await broker.subscribe(name, take)
    result = await got
    await subscription.cancel()
    return result


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_compressed_body_is_smaller_and_its_content_the_same(
    start: StartBroker, compression: str
) -> None:
    broker = await start(a_config(compress=compression))
    await (await broker.publish("orders", CONTENT))
    message, content = await received(broker)
    assert content == CONTENT
    assert message.properties.content_encoding == compression
    assert message.content_type == "application/json"
    assert len(message.body) < 200


async def test_forward_through_a_compressing_publication_keeps_the_body_and_says_what_it_is(
    start: StartBroker,
) -> None:
    broker = await start(a_config(compress="gzip"))
    await (await broker.publish("other", CONTENT))
    message, _ = await received(broker)
    await (await broker.forward("orders", message))
    copy, content = await received(broker)
    assert (copy.properties.content_encoding, content) == (None, CONTENT)


async def test_without_decompress_a_body_stays_as_it_is(start: StartBroker) -> None:
    broker = await start(a_config())
    body = gzip.compress(b"text")
    await (await broker.publish("/raw", body, content_encoding="gzip"))
    assert (await received(broker, "raw"))[1] == body


async def never(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
    raise AssertionError(f"handled {content!r}")


BOMB = b"0" * (LIMIT + 1)


@pytest.mark.parametrize(
    ("encoding", "body", "why"),
    [
        ("gzip", gzip.compress(BOMB), "larger than 100,000 bytes"),
        ("gzip", gzip.compress(BOMB[:60_000]) * 2, "larger than 100,000 bytes"),
        ("deflate", zlib.compress(BOMB), "larger than 100,000 bytes"),
        ("zstd", zstandard.compress(BOMB), "larger than 100,000 bytes"),
        ("zstd", zstandard.compress(BOMB[:60_000]) * 2, "larger than 100,000 bytes"),
        ("gzip", gzip.compress(b"text")[:-4], "cut off"),
        ("zstd", zstandard.compress(b"text" * 100)[:-4], "cut off"),
        ("gzip", b"no gzip", "incorrect header"),
        ("zstd", b"no zstd", "Unknown frame descriptor"),
    ],
    ids=["gzip", "members", "deflate", "zstd", "frames", "cut", "zstd cut", "none", "zstd none"],
)
async def test_bomb_or_damaged_body_is_invalid_content(
    encoding: str, body: bytes, why: str
) -> None:
    vhost = {"vhosts": {"/": a_config()}}
    async with Broker.create(vhost) as broker:
        errors: list[BaseException] = []
        subscription = await broker.subscribe("q", never)
        subscription.on("error", errors.append)
        await (await broker.publish("other", body, content_encoding=encoding))
        await eventually(lambda: errors)
        assert isinstance(errors[0], InvalidContentError)
        assert why in str(errors[0])


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "x-gzip", "utf-8"])
async def test_what_others_compress_is_read(encoding: str) -> None:
    compress: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "x-gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.ZstdCompressor(write_content_size=False).compress,
        "utf-8": bytes,
    }
    async with Broker.create({"vhosts": {"/": a_config()}}) as broker:
        options: Any = {"content_encoding": encoding, "content_type": "text/plain"}
        await (await broker.publish("other", compress[encoding](b"text" * 1000), **options))
        assert (await received(broker))[1] == "text" * 1000


async def test_compression_comes_before_encryption() -> None:
    config = {
        "vhosts": {"/": a_config(compress="gzip", encryption="key")},
        "encryption": {"key": {"key": "00" * 32, "algorithm": "aes-256-gcm"}},
    }
    async with Broker.create(config) as broker:
        await (await broker.publish("orders", CONTENT))
        message, content = await received(broker)
        assert content == CONTENT
        assert len(message.body) < 250


async def test_msgpack_is_used_once_it_is_registered(start: StartBroker) -> None:
    register_codec("application/msgpack", msgpack_codec())
    broker = await start(a_config(options={"content_type": "application/msgpack"}))
    content = {"id": 7, "raw": b"\x00\xff", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    await (await broker.publish("orders", content))
    message, handled = await received(broker)
    assert handled == content
    assert message.body.startswith(b"\x83")
    with pytest.raises(InvalidContentError, match="application/msgpack"):
        await broker.publish("orders", object())
    errors: list[BaseException] = []
    subscription = await broker.subscribe("q", never)
    subscription.on("error", errors.append)
    await (await broker.publish("orders", b"\xc1"))
    await eventually(lambda: errors)
    assert isinstance(errors[0], InvalidContentError)


async def test_protobuf_of_one_class() -> None:
    from google.protobuf.wrappers_pb2 import StringValue  # type: ignore[import-untyped]

    register_codec("application/x-protobuf", protobuf_codec(StringValue))
    options = {"content_type": "application/x-protobuf; type=StringValue"}
    async with Broker.create({"vhosts": {"/": a_config(options=options)}}) as broker:
        await (await broker.publish("orders", StringValue(value="seven")))
        assert (await received(broker))[1] == StringValue(value="seven")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x+json", "msgpack", "a/b; c=d"]
)
def test_what_cannot_be_registered_is_refused(content_type: str) -> None:
    with pytest.raises(ValueError, match=r"content type|built in"):
        register_codec(content_type, Codec(bytes, bytes))
    assert codec_of("application/unknown") is None


def test_compress_and_a_content_encoding_contradict_each_other() -> None:
    config = a_config(compress="gzip", options={"content_encoding": "br"})
    with pytest.raises(ConfigError, match="compress sets the content encoding"):
        load_config({"vhosts": {"/": config}})
