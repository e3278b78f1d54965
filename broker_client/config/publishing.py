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
    """Open `min` channels with each connection; otherwise the first ones that are needed."""
    min: Count = 0
    """Channels kept open without need."""
    max: Positive = 5
    """Most channels at a time."""
    acquire_timeout: Duration = 15.0
    """Longest wait for a free channel."""
    idle_timeout: Duration = 60.0
    """A channel unused for so long is closed."""
    close_timeout: Duration = 1.0
    """Longest wait for the broker to close a channel."""

    @model_validator(mode="after")
    def _max_is_not_below_min(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is below min ({self.min})")
        return self


class ChannelPoolsConfig(Settings):
    """The two pools that publications take their channels from."""

    regular: PoolConfig = Field(default_factory=PoolConfig)
    """Channels without publisher confirms."""
    confirm: PoolConfig = Field(default_factory=PoolConfig)
    """Channels with publisher confirms."""


class PublishQueueConfig(Settings):
    """Where publishes wait until they are sent and confirmed, also while the link is down."""

    max_queued: Positive = 100_000
    """Most messages waiting."""
    max_queued_bytes: ByteSize = 256 * 1024 * 1024
    """Most bytes of bodies waiting."""
    policy: Literal["wait", "reject", "drop_oldest"] = "wait"
    """What a publish to a full queue does."""
    max_in_flight: Positive = 1000
    """Most unconfirmed publishes a channel."""
    batch: Positive = 200
    """Most publishes written at once."""
    outbox: str | None = None
    """File in which confirmed publishes are kept from before `publish` returns until the broker
    has confirmed them; also those that wait when this process ends."""

    @model_validator(mode="after")
    def _outbox_waits(self) -> Self:
        if self.outbox is not None and self.policy != "wait":
            raise ValueError(f"an outbox loses nothing: policy {self.policy} does not go with it")
        return self


class PublicationOptions(Settings):
    """Properties of the messages (AMQP 0-9-1 §1.8) and how they are published."""

    persistent: bool = True
    """A durable queue keeps the message over a restart of the broker."""
    mandatory: bool = True
    """A message that no queue takes comes back, and the publication ends as `return`."""
    content_type: str | None = None
    """Content type; found from the content when left out."""
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
    """User; the broker refuses one that is not the connection's."""
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
    """Routing key, unless the call names one."""
    confirm: bool = True
    """Wait for the broker's publisher confirm."""
    timeout: Duration = 10.0
    """Time for the whole publish: queueing, sending and confirm."""
    options: PublicationOptions = Field(default_factory=PublicationOptions)
    """Properties of the messages."""
    retry_nacked: Count | None = None
    """Times a message that the broker nacked is sent again, after growing pauses; as often as
    `timeout` allows when left out, unless its queue is declared to reject when full."""
    reply_to: str | None = None
    """Queue of this vhost for answers; `options.reply_to` wins over it."""
    delay: Duration | None = None
    """Time before the message reaches its queues, unless the call says otherwise."""
    encryption: EncryptionConfig | None = None
    """Encrypt bodies: the name of a profile of the `encryption` section, or a profile."""
    compress: Literal["gzip", "zstd"] | None = None
    """Compress bodies, and say so in the content encoding; see `decompress` of subscriptions. zstd
    takes the extra `zstd`."""
    claim_check: ClaimCheckConfig | None = None
    """Keep large bodies in a store, compressed and encrypted as configured, and send a reference to
    them; off when left out. Subscriptions need a `claim_check` with the same `url`."""
    model: Annotated[
        Any, WithJsonSchema({"type": "string", "pattern": _MODEL.pattern, "default": None})
    ] = None
    """What every content has to fit, checked at each publish: a pydantic model, a dataclass or
    another type that pydantic can check, written `module:Name`; in Python also the type itself.
    Contents are published as JSON then."""

    @field_validator("model")
    @classmethod
    def _model_is_named(cls, value: Any) -> Any:
        if isinstance(value, str) and _MODEL.fullmatch(value) is None:
            raise ValueError(
                f"{value!r} names no type; write module:Name, such as app.models:Order"
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
