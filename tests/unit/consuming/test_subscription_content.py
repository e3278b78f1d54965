"""Contents for handlers: decryption, content types, plain functions and their answers."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.codec.encryption import encrypt
from broker_client.config import EncryptionConfig, Nack
from broker_client.errors import InvalidContentError, UnsupportedError
from broker_client.message import Message, Properties
from tests.support.consuming import SubscriptionHarness
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop

DEAD = ("nack", 1, False, False)


def a_profile(name: str = "v1", key: str = "ab", algorithm: str = "aes-256-cbc") -> Any:
    return EncryptionConfig.model_validate(
        {"name": name, "key": key * 32, "algorithm": algorithm, "iv_length": None}
    )


def encrypted(profile: EncryptionConfig, body: bytes = b'{"id":7}') -> dict[str, Any]:
    data, properties = encrypt(profile, body, Properties(content_type="application/json"))
    return {"body": data, "content_type": properties.content_type, "headers": properties.headers}


@pytest.mark.parametrize("algorithm", ["aes-256-cbc", "aes-256-gcm"])
async def test_encrypted_body_is_decrypted_and_read_by_its_first_content_type(
    algorithm: str,
) -> None:
    profile = a_profile(algorithm=algorithm)
    async with SubscriptionHarness(setup={"profiles": {"v1": profile}}) as harness:
        channel = await harness.consume()
        channel.deliver(**encrypted(profile))
        assert harness.contents() == [{"id": 7}]


async def test_each_message_finds_the_profile_it_names() -> None:
    """keys are rotated."""
    old, new = a_profile("old", "ab"), a_profile("new", "cd")
    async with SubscriptionHarness(setup={"profiles": {"old": old, "new": new}}) as harness:
        channel = await harness.consume()
        channel.deliver(**encrypted(old, b"1"))
        channel.deliver(**encrypted(new, b"2"))
        assert harness.contents() == [1, 2]


async def test_content_type_of_the_subscription_wins_over_the_encrypted_one() -> None:
    profile = a_profile()
    setup = {"profiles": {"v1": profile}}
    async with SubscriptionHarness(setup=setup, content_type="text/plain") as harness:
        channel = await harness.consume()
        channel.deliver(**encrypted(profile))
        assert harness.contents() == ['{"id":7}']


@pytest.mark.parametrize(
    "profiles",
    [{}, {"other": a_profile("other")}, {"v1": a_profile(key="cd", algorithm="aes-256-gcm")}],
    ids=["none", "unknown", "another-algorithm"],
)
async def test_body_that_cannot_be_decrypted_is_invalid_content(profiles: dict[str, Any]) -> None:
    async with SubscriptionHarness(setup={"profiles": profiles}) as harness:
        harness.listen("invalid_content")
        channel = await harness.consume()
        channel.deliver(**encrypted(a_profile()))
        [(_, (error, _, ack_or_nack))] = harness.heard
        assert isinstance(error, InvalidContentError)
        assert channel.settled == []
        await ack_or_nack(error, Nack())
        assert channel.settled == [DEAD]
        assert harness.kept == []


async def test_wrong_key_is_invalid_content() -> None:
    profile = a_profile(algorithm="aes-256-gcm")
    wrong = a_profile(key="cd", algorithm="aes-256-gcm")
    async with SubscriptionHarness(setup={"profiles": {"v1": wrong}}) as harness:
        harness.listen("error")
        channel = await harness.consume()
        channel.deliver(**encrypted(profile))
        await settle()
        assert channel.settled == [DEAD], "dead-lettered once, by default"
        assert harness.events() == ["error"]


@pytest.mark.parametrize(
    "failure", [UnsupportedError("encryption", "install it"), ModuleNotFoundError("cryptography")]
)
async def test_missing_package_is_no_fault_of_the_message(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    profile = a_profile()
    message = encrypted(profile)

    def missing(*args: Any) -> Any:
        raise failure

    monkeypatch.setattr("broker_client.consuming.dispatcher.decrypt", missing)
    setup = {"profiles": {"v1": profile}}
    async with SubscriptionHarness(setup=setup, recovery=[Nack(requeue=True)]) as harness:
        harness.listen("error", "invalid_content")
        channel = await harness.consume()
        channel.deliver(**message)
        await settle()
        assert harness.events() == ["error"]
        assert channel.settled == [("nack", 1, True, False)]


async def test_invalid_message_gets_what_has_no_other_listener() -> None:
    async with SubscriptionHarness() as harness:
        harness.listen("invalid_message", "error")
        channel = await harness.consume()
        channel.deliver(b"{", content_type="application/json")
        assert harness.events() == ["invalid_message"]


# --------------------------------------------------------------------------- plain functions


async def test_returning_acks_and_raising_recovers() -> None:
    async with SubscriptionHarness(recovery=[Nack()]) as harness:
        harness.listen("error")

        @harness.subscription.handle
        async def handle(content: Any) -> None:
            if content == b"bad":
                raise ValueError(content)

        await settle()
        channel = harness.channel
        channel.deliver(b"good")
        channel.deliver(b"bad")
        await settle()
        assert channel.settled == [("ack", 1, False), ("nack", 2, False, False)]
        assert harness.events() == ["error"]


async def test_content_that_does_not_fit_the_annotation_is_invalid_content() -> None:
    async with SubscriptionHarness() as harness:
        harness.listen("invalid_content")
        seen: list[Any] = []

        @harness.subscription.handle
        async def handle(content: dict[str, int]) -> None:
            seen.append(content)

        await settle()
        channel = harness.channel
        channel.deliver(b'{"a":"x"}', content_type="application/json")
        channel.deliver(b'{"a":1}', content_type="application/json")
        await settle()
        assert seen == [{"a": 1}]
        assert harness.events() == ["invalid_content"]
        assert channel.settled == [("ack", 2, False)]


async def test_what_a_handler_returns_answers_the_message() -> None:
    async with SubscriptionHarness() as harness:

        @harness.subscription.handle
        async def handle(content: Any, message: Message) -> dict[str, Any]:
            return {"was": content}

        await settle()
        channel = harness.channel
        text = {"content_type": "text/plain"}
        channel.deliver(b"7", reply_to="replies", correlation_id="c1", **text)
        channel.deliver(b"8", reply_to="replies", **text)
        channel.deliver(b"9", **text)
        await settle()
        assert len(channel.settled) == 3
        first, second = harness.republished
        assert (first.exchange, first.routing_key, first.mandatory) == ("", "replies", False)
        assert first.body == b'{"was":"7"}'
        assert first.properties.content_type == "application/json"
        assert first.properties.correlation_id == "c1"
        assert second.properties.correlation_id == "m2", "its message id, having no other"


# --------------------------------------------------------------------------- loop lag


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_handler_that_blocks_the_loop_is_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def clock() -> float:
        return now

    monkeypatch.setattr("broker_client.consuming.dispatcher.perf_counter", clock)
    monkeypatch.setattr("broker_client.consuming.handler_run.perf_counter", clock)

    def block(*args: Any) -> None:
        nonlocal now
        now += 4.0

    async def block_later(*args: Any) -> None:
        await settle(1)
        block()

    async with SubscriptionHarness(loop_lag=1.0) as harness:
        harness.listen("loop_blocked")
        channel = await harness.consume(block if kind == "plain" else block_later)
        channel.deliver()
        await settle()
        assert harness.heard == [("loop_blocked", (4.0, "orders"))]


async def test_loop_lag_of_zero_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SubscriptionHarness(loop_lag=0.0) as harness:
        harness.listen("loop_blocked")
        ticks = iter(range(100))
        monkeypatch.setattr(
            "broker_client.consuming.handler_run.perf_counter", lambda: float(next(ticks))
        )
        monkeypatch.setattr(
            "broker_client.consuming.dispatcher.perf_counter", lambda: float(next(ticks))
        )
        channel = await harness.consume()
        channel.deliver()
        assert harness.heard == []
