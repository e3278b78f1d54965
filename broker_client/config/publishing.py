"""Models of publishing: channel pools, the publish queue, publications."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from broker_client.config.claim_check import ClaimCheckConfig
from broker_client.config.encryption import EncryptionConfig
from broker_client.config.values import ByteSize, Count, Duration, Positive, Settings

_MODEL = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


class PoolConfig(Settings):
    """A pool of channels."""

    autostart: bool = False
    """Open `min` channels when connecting; otherwise channels are opened when needed."""
    min: Count = 0
    """Number of channels to keep open when idle."""
    max: Positive = 5
    """Maximum number of channels."""
    acquire_timeout: Duration = 15.0
    """Longest wait for a free channel."""
    idle_timeout: Duration = 60.0
    """Channels that are unused for this long are closed."""
    close_timeout: Duration = 1.0
    """Longest wait for the broker to close a channel."""

    @model_validator(mode="after")
    def _max_is_not_below_min(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is below min ({self.min})")
        return self


class ChannelPoolsConfig(Settings):
    """The two pools that publications take their channels from."""

    regular: PoolConfig = Field(default_factory=PoolConfig.model_construct)
    """Channels without publisher confirms."""
    confirm: PoolConfig = Field(default_factory=PoolConfig.model_construct)
    """Channels with publisher confirms."""


class PublishQueueConfig(Settings):
    """Where publishes wait until they are sent and confirmed, also while the link is down."""

    max_queued: Positive = 100_000
    """Maximum number of waiting messages."""
    max_queued_bytes: ByteSize = 256 * 1024 * 1024
    """Maximum size of the bodies of waiting messages, in bytes."""
    policy: Literal["wait", "reject", "drop_oldest"] = "wait"
    """What `publish` does when the queue is full."""
    max_in_flight: Positive = 1000
    """Maximum number of unconfirmed publishes per channel."""
    batch: Positive = 200
    """Maximum number of publishes written at once."""
    outbox: str | None = None
    """File that keeps publishes with confirms from before `publish` returns until the broker has
    confirmed them, also when this process ends in between."""

    @model_validator(mode="after")
    def _outbox_waits(self) -> Self:
        if self.outbox is not None and self.policy != "wait":
            raise ValueError(
                f"policy {self.policy} cannot be combined with an outbox, which loses nothing"
            )
        return self


class PublicationOptions(Settings):
    """Properties of the messages (AMQP 0-9-1 §1.8) and how they are published."""

    persistent: bool = True
    """A durable queue keeps the message over a restart of the broker."""
    mandatory: bool = True
    """The broker returns a message that it cannot route to a queue, and the publication ends as
    `return`."""
    content_type: str | None = None
    """Content type; derived from the content when left out."""
    content_encoding: str | None = None
    """Content encoding."""
    headers: dict[str, Any] = Field(default_factory=dict)
    """Headers."""
    priority: Annotated[int, Field(ge=0, le=255)] | None = None
    """Priority, 0 to 255."""
    expiration: Duration | None = None
    """Time the message may wait in a queue."""
    correlation_id: str | None = None
    """Correlation id."""
    reply_to: str | None = None
    """Queue for answers, by its name on the broker."""
    type: str | None = None
    """Type of the message."""
    user_id: str | None = None
    """User name; the broker refuses any other than the connection's user."""
    app_id: str | None = None
    """Name of the application."""


class PublicationConfig(Settings):
    """Where messages are published to: an exchange, or a queue by the default exchange."""

    name: str
    """Key of the publication."""
    vhost: str = "/"
    """Vhost of the exchange or queue."""
    exchange: str | None = None
    """Exchange; '' is the default exchange. Either this or `queue`."""
    queue: str | None = None
    """Queue. Either this or `exchange`."""
    routing_key: str = ""
    """Routing key, unless the call sets one."""
    confirm: bool = True
    """Wait for the broker's publisher confirm."""
    timeout: Duration = 10.0
    """Time for the whole publish: queueing, sending and confirm."""
    options: PublicationOptions = Field(default_factory=PublicationOptions.model_construct)
    """Properties of the messages."""
    retry_nacked: Count | None = None
    """How often a nacked message is sent again, after growing pauses. When left out: as often as
    `timeout` allows, or never if its queue is declared to reject when full."""
    reply_to: str | None = None
    """Queue of this vhost for answers; `options.reply_to` takes precedence."""
    delay: Duration | None = None
    """Delay before the message reaches its queues, unless the call sets one."""
    encryption: EncryptionConfig | None = None
    """Encrypt bodies: the name of a profile of the `encryption` section, or a profile."""
    compress: Literal["gzip", "zstd"] | None = None
    """Compress bodies and set the content encoding; see `decompress` of subscriptions. zstd
    needs the extra `zstd`."""
    claim_check: ClaimCheckConfig | None = None
    """Keep large bodies in a store, compressed and encrypted as configured, and send a reference to
    them; off when left out. Subscriptions need a `claim_check` with the same `url`."""
    model: Annotated[
        Any, WithJsonSchema({"type": "string", "pattern": _MODEL.pattern, "default": None})
    ] = None
    """Type that every content must match, checked at each publish: a pydantic model, a dataclass
    or another type that pydantic can check, written `module:Name`; in Python also the type
    itself. Contents are published as JSON then."""

    @field_validator("model")
    @classmethod
    def _model_is_named(cls, value: Any) -> Any:
        if isinstance(value, str) and _MODEL.fullmatch(value) is None:
            raise ValueError(
                f"{value!r} is not the name of a type; write module:Name, such as app.models:Order"
            )
        return value

    @model_validator(mode="after")
    def _exchange_or_queue(self) -> Self:
        if (self.exchange is None) == (self.queue is None):
            raise ValueError("name either an exchange or a queue")
        if self.compress is not None and self.options.content_encoding is not None:
            raise ValueError(
                "compress sets the content encoding: leave options.content_encoding out"
            )
        return self
