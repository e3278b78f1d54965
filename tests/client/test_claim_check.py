"""Large bodies in a store outside the broker, through the whole client on every broker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from broker_client import AckOrNack, Broker, Message
from broker_client.errors import (
    BodyMissingError,
    BrokerClientError,
    ClaimCheckError,
    HandlerError,
    UnsupportedError,
)
from tests.client.conftest import StartBroker
from tests.client.test_content import received
from tests.support.eventually import eventually

SMALL, LARGE = {"id": 1}, {"id": 2, "lines": ["a"] * 1000}
KEY = {"algorithm": "aes-256-gcm", "key": "00" * 32}


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty store."""
    return tmp_path.joinpath("bodies").as_uri() if request.param == "file" else a_memory()


def a_memory() -> str:
    return f"memory://{uuid4().hex}"


def objects(store: str) -> dict[str, bytes]:
    """The contents of `store`, by name."""
    files, folder = fsspec.core.url_to_fs(store)
    found = files.find(folder) if files.exists(folder) else []
    return {path.rpartition("/")[2]: files.cat_file(path) for path in found}


def a_config(
    store: str, publication: dict[str, Any] | None = None, **subscription: Any
) -> dict[str, Any]:
    claim_check = {"url": store, "above": 1000}
    return {
        "exchanges": {"dead": {"type": "fanout"}},
        "queues": {
            "q": {"options": {"dead_letter_exchange": "dead"}},
            "d": {},
        },
        "bindings": ["dead -> d"],
        "publications": {
            "orders": {"queue": "q", "claim_check": claim_check, **(publication or {})},
            "again": {"queue": "q"},
            "sealed": {"queue": "q", "encryption": "key"},
        },
        "subscriptions": {
            "q": {"queue": "q", "claim_check": claim_check, **subscription},
            "d": {"queue": "d", "claim_check": claim_check},
            "bare": {"queue": "q"},
        },
        "encryption": {"key": KEY},
        "recovery": {"patient": [{"strategy": "republish", "attempts": 1}, {"strategy": "nack"}]},
    }


async def test_large_body_goes_to_the_store_and_a_small_one_with_its_message(
    start: StartBroker, store: str
) -> None:
    broker = await start(a_config(store))
    await (await broker.publish("orders", SMALL))
    message, content = await received(broker)
    assert (content, message.body, objects(store)) == (SMALL, b'{"id":1}', {})
    await (await broker.publish("orders", LARGE))
    message, content = await received(broker)
    assert (content, message.body) == (LARGE, b"")
    [(name, body)] = objects(store).items()
    reference = (message.properties.headers or {})["rascal"]["claimCheck"]
    assert reference == {"object": name, "size": len(body)}


async def test_publish_many_stores_large_bodies_too_and_the_order_is_kept(
    start: StartBroker, store: str
) -> None:
    broker = await start(a_config(store))
    contents = [{"id": number, "text": "a" * (2000 * (number % 2))} for number in range(10)]
    await broker.publish_many("orders", contents)
    assert len(objects(store)) == 5
    got: list[Any] = []

    @broker.handle("q")
    async def take(content: Any) -> None:
        got.append(content)

    await eventually(lambda: len(got) == 10)
    assert got == contents


async def test_body_is_compressed_then_encrypted_then_stored(
    start: StartBroker, store: str
) -> None:
    claim_check = {"url": store, "above": 60}
    publication = {"compress": "gzip", "encryption": "key", "claim_check": claim_check}
    broker = await start(a_config(store, publication, decompress="1MiB"))
    await (await broker.publish("orders", LARGE))
    _, content = await received(broker)
    assert content == LARGE
    [body] = objects(store).values()
    assert len(body) < 200  # compressed
    assert not body.startswith(b"\x1f\x8b")  # and encrypted


async def test_retry_and_dead_letter_keep_the_reference(start: StartBroker, store: str) -> None:
    broker = await start(a_config(store, recovery="patient"))
    tried: list[Any] = []

    @broker.handle("q")
    async def fail(content: Any) -> None:
        tried.append(content)
        raise ValueError("no")

    await (await broker.publish("orders", LARGE))
    message, content = await received(broker, "d")
    assert tried == [LARGE, LARGE]
    assert (content, message.body, len(objects(store))) == (LARGE, b"", 1)


@pytest.mark.parametrize("publication", ["again", "sealed", "orders"])
async def test_forward_keeps_the_reference(
    start: StartBroker, store: str, publication: str
) -> None:
    broker = await start(a_config(store))
    await (await broker.publish("orders", LARGE))
    message, _ = await received(broker)
    await (await broker.forward(publication, message))
    copy, content = await received(broker)
    assert (content, copy.body, len(objects(store))) == (LARGE, b"", 1)


async def refused(broker: Broker, subscription: str = "q") -> BrokerClientError:
    """The error with which the next message of `subscription` is refused."""
    got: asyncio.Future[BrokerClientError] = asyncio.get_running_loop().create_future()

    async def take(error: BrokerClientError, message: Message, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        got.set_result(error)

    async def never(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        raise AssertionError(f"handled {content!r}")

    consumer = await broker.subscribe(subscription, never)
    consumer.on("invalid_content", take)
    error = await got
    await consumer.cancel()
    return error


async def test_missing_object_is_invalid_content(start: StartBroker, store: str) -> None:
    broker = await start(a_config(store))
    await (await broker.publish("orders", LARGE))
    [name] = objects(store)
    fsspec.core.url_to_fs(store)[0].rm(f"{fsspec.core.url_to_fs(store)[1]}/{name}")
    error = await refused(broker)
    assert isinstance(error, BodyMissingError)
    assert str(error) == f"body is missing: object {name} is not in the store of subscription 'q'"


async def test_object_of_another_size_is_invalid_content() -> None:
    store = a_memory()
    async with Broker.create(whole(a_config(store))) as broker:
        for changed, said in ((b"a", "1 bytes"), (b"a" * 9999, "more bytes")):
            await (await broker.publish("orders", LARGE))
            [name] = objects(store)
            files, folder = fsspec.core.url_to_fs(store)
            files.pipe_file(f"{folder}/{name}", changed)
            error = await refused(broker)
            assert f"object {name} has {said} instead of " in str(error)
            files.rm(folder, recursive=True)


async def test_subscription_without_a_store_refuses_a_reference() -> None:
    async with Broker.create(whole(a_config(a_memory()))) as broker:
        await (await broker.publish("orders", LARGE))
        assert "subscription 'bare' has no claim_check" in str(await refused(broker, "bare"))


@pytest.mark.parametrize(
    "reference",
    [
        {"object": "../secret", "size": 6},
        {"object": "/etc/passwd", "size": 6},
        {"object": "file:", "size": 6},
        {"object": 7, "size": 6},
        {"object": "a", "size": "6"},
        {"object": "a", "size": 0},
        {},
        "text",
    ],
    ids=str,
)
async def test_reference_that_others_wrote_reads_nothing_else(
    tmp_path: Path, reference: object
) -> None:
    (tmp_path / "secret").write_text("secret")
    store = tmp_path.joinpath("bodies").as_uri()
    async with Broker.create(whole(a_config(store))) as broker:
        headers = {"rascal": {"claimCheck": reference}}
        await (await broker.publish("again", b"", headers=headers))
        assert "its reference" in str(await refused(broker))


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of the built-in broker, of what `start` takes."""
    root = {key: config.pop(key) for key in ("encryption", "recovery")}
    return {**root, "vhosts": {"/": config}}


async def test_store_that_fails_fails_the_publish_and_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "bodies").write_text("not a folder")
    async with Broker.create(whole(a_config((tmp_path / "bodies").as_uri()))) as broker:
        with pytest.raises(ClaimCheckError, match="publication 'orders': cannot store a body"):
            await broker.publish("orders", LARGE)
        assert broker.nodes.node().stats().queues[0].ready == 0


async def test_store_that_fails_for_a_while_has_the_message_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "bodies"
    config = a_config(folder.as_uri(), requeue_defer={"min": "10ms", "max": "20ms"})
    async with Broker.create(whole(config)) as broker:
        await (await broker.publish("orders", LARGE))
        [stored] = folder.iterdir()
        body = stored.read_bytes()
        stored.unlink()
        stored.symlink_to(stored)  # cannot be read, but it is there
        handled: list[Any] = []
        errors: list[BaseException] = []

        @broker.handle("q")
        async def take(content: Any) -> None:
            handled.append(content)

        broker.subscriptions[0].on("error", errors.append)
        await eventually(lambda: len(errors) > 1)
        assert isinstance(errors[0], HandlerError)
        assert isinstance(errors[0].__cause__, ClaimCheckError)
        whole_again = tmp_path / "whole again"
        whole_again.write_bytes(body)
        whole_again.replace(stored)  # in one step: it is read all the time
        await eventually(lambda: handled == [LARGE])


async def test_store_whose_package_is_missing_is_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnsupportedError, match=r"claim_check at nothing://"):
        await Broker.create(whole(a_config("nothing://bucket")))
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UnsupportedError, match=r"\[fsspec\]"):
        await Broker.create(whole(a_config(a_memory())))
