"""Models of consuming: subscriptions, counters of redeliveries, stores of message ids, shovels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from broker_client.config.backoff import BackoffConfig, RetryConfig
from broker_client.config.claim_check import ClaimCheckConfig
from broker_client.config.encryption import EncryptionConfig
from broker_client.config.recovery import Strategy
from broker_client.config.topology import Arguments
from broker_client.config.values import ByteSize, Count, Duration, Positive, Rate, Settings

# --------------------------------------------------------------------------- streams

_OFFSETS = ("first", "last", "next")
_SINCE = re.compile(r"(\d+)\s*([smhdDMY])")


def _offset(value: object) -> object:
    if isinstance(value, str):
        text = value.strip()
        match = _SINCE.fullmatch(text)
        if match is not None:
            # RabbitMQ streams: an interval has the units Y, M, D, h, m and s.
            return match[1] + {"d": "D"}.get(match[2], match[2])
        value = int(text) if text.isdecimal() else _time(text)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if value in _OFFSETS or (type(value) is int and value >= 0):
        return value
    raise ValueError(
        f"{value!r} is not an offset; write first, last, next, a number, a time, or how far back "
        "to go, such as 1h or 7d"
    )


def _time(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


StreamOffset = Annotated[int | datetime | str, BeforeValidator(_offset)]


class ConsumeOptions(Settings):
    """Options of the consumer when it starts."""

    no_ack: bool = False
    """Messages count as settled when the broker sends them; those in progress are lost with the
    connection."""
    exclusive: bool = False
    """No other consumer may use the queue."""
    consumer_tag: str = ""
    """Consumer tag; generated when empty."""
    priority: int | None = None
    """Consumers with a higher priority are served first (`x-priority`)."""
    offset: StreamOffset | None = None
    """Where to begin in a stream (`x-stream-offset`): `first`, `last`, `next`, a number, a time,
    or an age, such as `1h`. After a reconnect, consuming resumes behind the last settled
    message."""
    arguments: Arguments = Field(default_factory=dict)
    """Further arguments by their names on the broker; they take precedence over the options
    above."""

    @property
    def all_arguments(self) -> Arguments:
        """The arguments to consume with."""
        friendly = {"x-priority": self.priority, "x-stream-offset": self.offset}
        given = {key: value for key, value in friendly.items() if value is not None}
        return given | self.arguments


# --------------------------------------------------------------------------- memory of messages


def _place_fits(kind: str, path: str | None, url: SecretStr | None) -> None:
    """Raises ValueError where a store in a file or on a server has no place, or another has one."""
    for key, value, owner in (("path", path, "sqlite"), ("url", url, "redis")):
        if kind == owner and value is None:
            raise ValueError(f"{owner} needs a {key}")
        if kind != owner and value is not None:
            raise ValueError(f"{key} is for {owner}; this is {kind}")


class CounterConfig(Settings):
    """Counts how often each message was delivered again."""

    name: str
    """Key of the counter."""
    type: Literal["stub", "memory", "sqlite", "redis", "custom"]
    """`stub` always returns 0, `memory` lasts as long as the process, `sqlite` uses a file,
    `redis` is shared by processes, `custom` is passed to `Broker.create`. May be left out if the
    counter's name is one of these."""
    size: Positive = 1000
    """Maximum number of messages to remember; the oldest are forgotten."""
    path: str | None = None
    """File, for `sqlite`."""
    url: SecretStr | None = None
    """Address, for `redis`: redis://user:password@host:6379/0. Never printed."""
    options: Arguments = Field(default_factory=dict)
    """Options of a `custom` counter."""

    @model_validator(mode="before")
    @classmethod
    def _type_is_the_name(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("type") is None and value.get("name") in _TYPES:
            return {**value, "type": value["name"]}
        return value

    @model_validator(mode="after")
    def _has_its_place(self) -> Self:
        if self.type != "custom":
            _place_fits(self.type, self.path, self.url)
            if self.options:
                raise ValueError(f"options are for a custom counter; this is {self.type}")
        return self


_TYPES = ("stub", "memory", "sqlite", "redis", "custom")

BUILT_IN_COUNTERS = {
    "stub": CounterConfig.model_construct(name="stub", type="stub"),
    "memory": CounterConfig.model_construct(name="memory", type="memory"),
}
"""Counters that are there without being declared."""


class CountersConfig(Settings):
    """Counters of redeliveries, by name. `stub` and `memory` need no declaration."""

    counters: dict[str, CounterConfig] = Field(default_factory=dict)
    """Counters by name; those of a vhost take precedence over those of the file."""


class RedeliveriesConfig(Settings):
    """Limit of redeliveries. Counts only with another counter than `stub`."""

    limit: Count = 100
    """Maximum number of redeliveries; the next one emits `redeliveries_exceeded`."""
    timeout: Duration = 1.0
    """Longest wait for the counter."""
    counter: str = "stub"
    """Name of the counter."""


class DeduplicateConfig(Settings):
    """Remembers the ids of handled messages, and acks one that comes again unhandled."""

    store: Literal["memory", "sqlite", "redis"] = "memory"
    """Where ids are kept."""
    window: Annotated[Duration, Field(gt=0)] = 600.0
    """How long ids are remembered."""
    size: Positive = 100_000
    """Maximum number of ids in `memory` and `sqlite`; the oldest are forgotten."""
    timeout: Annotated[Duration, Field(gt=0)] = 1.0
    """Longest wait for the store; if it does not answer in time, the message is handled."""
    path: str | None = None
    """File, for `sqlite`."""
    url: SecretStr | None = None
    """Address, for `redis`. Never printed."""

    @model_validator(mode="after")
    def _has_its_place(self) -> Self:
        _place_fits(self.store, self.path, self.url)
        return self


# --------------------------------------------------------------------------- flow of handlers


class BreakerConfig(Settings):
    """A circuit breaker: pauses a subscription whose handlers fail too often."""

    ratio: Annotated[float, Field(ge=0.01, le=1.0)] = 0.15
    """Share of failed messages at which the subscription pauses."""
    min: Positive = 10
    """Minimum number of messages in a window before it may pause."""
    window: Annotated[Duration, Field(gt=0)] = 60.0
    """Length of a window; counting restarts after this time."""
    pause: Annotated[Duration, Field(gt=0)] = 60.0
    """Length of the pause. The first message handled after it decides: if it fails, there is
    another pause."""


class BatchConfig(Settings):
    """Messages collected for one call of a handler."""

    size: Positive
    """Maximum number of messages in a batch."""
    wait: Annotated[Duration, Field(gt=0)] = 1.0
    """Longest wait for further messages, from the first message of a batch."""


# --------------------------------------------------------------------------- subscriptions


Replies = Literal["all", "results", "none"]


class SubscriptionConfig(Settings):
    """A consumer of a queue."""

    name: str
    """Key of the subscription."""
    vhost: str = "/"
    """Vhost of the queue."""
    queue: str
    """Queue."""
    prefetch: Annotated[int, Field(ge=0, le=65535)] = 10
    """Maximum number of unsettled messages; 0 means no limit."""
    channel_prefetch: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Maximum number of unsettled messages of the whole channel. An error on RabbitMQ 4.3, which
    no longer supports it."""
    concurrency: Positive | None = None
    """Maximum number of handlers running at a time; limited only by `prefetch` when left out."""
    rate: Rate | None = None
    """Maximum number of messages started per period, such as `5/s`, `100/m` or `10/30s`; further
    messages wait. No limit when left out."""
    batch: BatchConfig | None = None
    """Collect messages into batches: functions of `handle` get a list of contents. Off when left
    out."""
    breaker: BreakerConfig | None = None
    """Pause when handlers fail too often; off when left out."""
    content_type: str | None = None
    """Decode bodies as this content type, regardless of the message's own."""
    decompress: ByteSize | None = None
    """Decompress bodies whose content encoding is `gzip`, `deflate` or `zstd`, up to this size;
    a larger body is invalid content. Bodies are not decompressed when left out."""
    claim_check: ClaimCheckConfig | None = None
    """Store of large bodies. Without it, a message that carries a reference to a body is invalid
    content."""
    options: ConsumeOptions = Field(default_factory=ConsumeOptions.model_construct)
    """Options of the consumer."""
    retry: RetryConfig = Field(default_factory=RetryConfig.model_construct)
    """Waits between attempts to subscribe again."""
    recovery: tuple[Strategy, ...] | None = None
    """What happens when the handler fails: a name of the `recovery` section, a strategy or a
    list of them. When left out, the message is requeued after a growing `requeue_defer`."""
    requeue_defer: BackoffConfig = Field(default_factory=BackoffConfig.model_construct)
    """Delays of the built-in recovery."""
    max_hops: Positive | None = None
    """Maximum number of copies that `republish` and `forward` make of a message, over all
    queues; beyond it, recovery skips these strategies. No limit when left out."""
    redeliveries: RedeliveriesConfig = Field(default_factory=RedeliveriesConfig.model_construct)
    """Limit of redeliveries."""
    deduplicate: DeduplicateConfig | None = None
    """Skip messages that were handled before. Off when left out."""
    encryption: dict[str, EncryptionConfig] | None = None
    """Profiles to decrypt with: names of the `encryption` section, or profiles by name. All
    profiles of the section when left out."""
    check_interval: Duration = 60.0
    """How often to check that the queue still has a consumer, and consume again if it has none;
    0s turns the check off. A lost consumer is not noticed while the queue has other consumers.
    Streams and the built-in broker, which loses no consumers, are not checked."""
    replies: Replies = "all"
    """Which answers `handle` sends to messages with a `reply_to`. `all`: the handler's result,
    an answer without content for None, and the class of the error when a message fails for good.
    `results`: only results that are not None. `none`: no answers."""
    loop_lag: Duration = 1.0
    """Log a warning when handlers block the event loop for longer than this; 0s turns it off."""
    close_timeout: Duration = 10.0
    """Longest wait for unsettled messages when the subscription ends."""

    @model_validator(mode="after")
    def _batch_has_room(self) -> Self:
        for limit, value in (("prefetch", self.prefetch), ("concurrency", self.concurrency)):
            if self.batch is not None and value and value < self.batch.size:
                raise ValueError(
                    f"batch.size ({self.batch.size}) is above {limit} ({value}), so a batch would "
                    f"never be full: raise {limit}"
                )
        return self

    @model_validator(mode="after")
    def _recovery_has_something_to_settle(self) -> Self:
        # with no_ack the broker has forgotten the message already.
        if self.options.no_ack and self.recovery:
            raise ValueError("no_ack leaves nothing to settle: take out no_ack or recovery")
        return self


class ShovelConfig(Settings):
    """Moves what a subscription receives to a publication: `sub -> pub` in a list or as a value, or
    a mapping. Names of queues and exchanges do as well: `/left -> /right`."""

    name: str
    """Key of the shovel."""
    subscription: str
    """Name of the subscription."""
    publication: str
    """Name of the publication."""
    keep_counters: bool = False
    """Keep recovery's counts of attempts, so that a dead letter that is moved back has only its
    remaining attempts. By default the counts start again."""
