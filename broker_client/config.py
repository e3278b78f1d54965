"""The settings as frozen models, with every default on its field.

`config_loader.load_config` makes a `BrokerConfig` from YAML. In Python the models are built
directly, with durations in float seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from broker_client.config_connection import BackoffConfig, ConnectionConfig, RetryConfig
from broker_client.config_recovery import (
    Ack,
    Forward,
    Nack,
    Republish,
    Strategy,
    strategies_from,
)
from broker_client.config_topology import (
    Arguments,
    BindingConfig,
    BindingOptions,
    ExchangeConfig,
    ExchangeOptions,
    QueueConfig,
    QueueOptions,
)
from broker_client.config_values import ByteSize, Count, Duration, Positive, Settings

__all__ = [
    "Ack",
    "BackoffConfig",
    "BindingConfig",
    "BindingOptions",
    "BrokerConfig",
    "ChannelPoolsConfig",
    "ConnectionConfig",
    "ConsumeOptions",
    "Duration",
    "ExchangeConfig",
    "ExchangeOptions",
    "Forward",
    "Nack",
    "NodeConfig",
    "PoolConfig",
    "PublicationConfig",
    "PublicationOptions",
    "PublishQueueConfig",
    "QueueConfig",
    "QueueOptions",
    "Republish",
    "RetryConfig",
    "Strategy",
    "SubscriptionConfig",
    "VhostConfig",
    "strategies_from",
]


# --------------------------------------------------------------------------- vhosts


class PoolConfig(Settings):
    """A pool of channels."""

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

    regular: PoolConfig = PoolConfig()
    """Channels without publisher confirms."""
    confirm: PoolConfig = PoolConfig()
    """Channels with publisher confirms."""


class PublishQueueConfig(Settings):
    """Where publishes wait until they are sent and confirmed, also while the link is down."""

    max_queued: Positive = 100_000
    """Most messages waiting."""
    max_queued_bytes: ByteSize = 256 * 1024 * 1024
    """Most bytes of bodies waiting; a number, or text such as 64MiB."""
    policy: Literal["wait", "reject", "drop_oldest"] = "wait"
    """What a publish to a full queue does."""
    max_in_flight: Positive = 1000
    """Most unconfirmed publishes a channel."""
    batch: Positive = 200
    """Most publishes written at once."""


class NodeConfig(Settings):
    """Settings of the built-in broker; without effect on other brokers."""

    message_timeout: Duration = 60.0
    """Time a delivery may stay unsettled before its queue takes it back."""
    max_message_timeout: Duration = 900.0
    """Longest time a delivery may be kept by touching it."""
    max_requeue_timeout: Duration = 3600.0
    """Longest delay of a deferred requeue."""


class VhostConfig(Settings):
    """A vhost: its connections and what is declared in it."""

    yaml_keys: ClassVar[tuple[str, ...]] = (
        "connection",
        "publications",
        "subscriptions",
        "defaults",
    )

    name: str
    """Key of the vhost."""
    connections: Annotated[tuple[ConnectionConfig, ...], Field(validate_default=True)] = ()
    """Brokers to try, in order, written `connection` or `connections`: a URL, a mapping, or a
    list of these; the built-in broker, `embedded://`, when left out."""
    concurrency: Positive = 1
    """Channels used to declare what is below."""
    exchanges: Annotated[dict[str, ExchangeConfig], Field(validate_default=True)] = Field(
        default_factory=dict
    )
    """Exchanges by name. The default exchange, '', is always there."""
    queues: dict[str, QueueConfig] = Field(default_factory=dict)
    """Queues by name."""
    bindings: tuple[BindingConfig, ...] = ()
    """Bindings."""
    publication_channel_pools: ChannelPoolsConfig = ChannelPoolsConfig()
    """Channels for publishing."""
    publish_queue: PublishQueueConfig = PublishQueueConfig()
    """Waiting publishes."""
    node: NodeConfig = NodeConfig()
    """Settings of the built-in broker."""

    @field_validator("connections")
    @classmethod
    def _connections_know_their_vhost(
        cls, value: tuple[ConnectionConfig, ...], info: ValidationInfo
    ) -> tuple[ConnectionConfig, ...]:
        name = info.data.get("name", "/")
        return tuple(each.for_vhost(name) for each in value or (ConnectionConfig(),))

    @field_validator("exchanges")
    @classmethod
    def _default_exchange_is_there(
        cls, value: dict[str, ExchangeConfig]
    ) -> dict[str, ExchangeConfig]:
        # AMQP 0-9-1 §3.1.3.1: every vhost has a direct exchange without a name.
        return {"": ExchangeConfig(name="", type="direct"), **value}


# --------------------------------------------------------------------------- publications


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
    """Queue for answers."""
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
    options: PublicationOptions = PublicationOptions()
    """Properties of the messages."""
    retry_nacked: Count = 0
    """Times a message that the broker nacked is sent again."""

    @model_validator(mode="after")
    def _exchange_or_queue(self) -> Self:
        if (self.exchange is None) == (self.queue is None):
            raise ValueError("name either an exchange or a queue")
        return self


# --------------------------------------------------------------------------- subscriptions


class ConsumeOptions(Settings):
    """What the broker is told when the consumer starts."""

    no_ack: bool = False
    """Messages count as settled when sent; they are lost with the connection."""
    exclusive: bool = False
    """No other consumer may use the queue."""
    consumer_tag: str = ""
    """Name of the consumer; made up when empty."""
    priority: int | None = None
    """Consumers with a higher priority are served first (`x-priority`)."""
    arguments: Arguments = Field(default_factory=dict)
    """Further arguments, as the broker knows them; they win over the options above."""

    @property
    def all_arguments(self) -> Arguments:
        """The arguments to consume with."""
        friendly = {} if self.priority is None else {"x-priority": self.priority}
        return friendly | self.arguments


class SubscriptionConfig(Settings):
    """A consumer of a queue."""

    name: str
    """Key of the subscription."""
    vhost: str = "/"
    """Vhost of the queue."""
    queue: str
    """Queue."""
    prefetch: Annotated[int, Field(ge=0, le=65535)] = 10
    """Unsettled messages at a time; 0 is no limit."""
    content_type: str | None = None
    """Read bodies as this content type, whatever the message says."""
    options: ConsumeOptions = ConsumeOptions()
    """Options of the consumer."""
    retry: RetryConfig = RetryConfig()
    """Waits between attempts to subscribe again."""
    recovery: tuple[Strategy, ...] | None = None
    """What happens when the handler fails: a name of the `recovery` section, a strategy or a
    list of them. Left out, the message is requeued after a growing `requeue_defer`."""
    requeue_defer: BackoffConfig = BackoffConfig()
    """Delays of the built-in recovery."""
    close_timeout: Duration = 10.0
    """Longest wait for unsettled messages when the subscription ends."""


# --------------------------------------------------------------------------- all of it


class BrokerConfig(Settings):
    """Everything: what `load_config` returns and `Broker.create` takes."""

    yaml_keys: ClassVar[tuple[str, ...]] = ("defaults", "profile")

    vhosts: dict[str, VhostConfig]
    """Vhosts by name; at least one."""
    publications: dict[str, PublicationConfig] = Field(default_factory=dict)
    """Publications by name, those of the vhosts included."""
    subscriptions: dict[str, SubscriptionConfig] = Field(default_factory=dict)
    """Subscriptions by name, those of the vhosts included."""
    recovery: dict[str, tuple[Strategy, ...]] = Field(default_factory=dict)
    """Recovery chains by name."""

    _implied: dict[str, tuple[PublicationConfig, SubscriptionConfig]] = PrivateAttr(
        default_factory=dict
    )

    @field_validator("vhosts")
    @classmethod
    def _some_vhost(cls, value: dict[str, VhostConfig]) -> dict[str, VhostConfig]:
        if not value:
            raise ValueError("No vhosts specified")
        return value

    def find_publication(self, name: str) -> PublicationConfig | None:
        """The publication called `name`.

        Every queue and exchange has one without declaring it, as in rascal: ``/orders`` in the
        vhost ``/``, ``v1/orders`` in the vhost ``v1``. A queue wins over an exchange, and what
        is declared over both.
        """
        if name in self.publications:
            return self.publications[name]
        for vhost, entity in self._named(name):
            known = self._implied.get(vhost.name)
            like = known[0] if known else PublicationConfig(name=name, exchange="")
            place: dict[str, str | None] = {"name": name, "vhost": vhost.name}
            if entity in vhost.queues:
                return like.model_copy(update={**place, "queue": entity, "exchange": None})
            if entity in vhost.exchanges:
                return like.model_copy(update={**place, "exchange": entity, "queue": None})
        return None

    def find_subscription(self, name: str) -> SubscriptionConfig | None:
        """The subscription called `name`; every queue has one, see `find_publication`."""
        if name in self.subscriptions:
            return self.subscriptions[name]
        for vhost, entity in self._named(name):
            if entity in vhost.queues:
                known = self._implied.get(vhost.name)
                like = known[1] if known else SubscriptionConfig(name=name, queue=entity)
                return like.model_copy(update={"name": name, "vhost": vhost.name, "queue": entity})
        return None

    def set_implied(
        self, templates: Mapping[str, tuple[PublicationConfig, SubscriptionConfig]]
    ) -> None:
        """What the layers say of entries that nobody declared, by vhost; for the loader."""
        self._implied = dict(templates)

    def _named(self, name: str) -> Iterator[tuple[VhostConfig, str]]:
        for key, vhost in self.vhosts.items():
            prefix = "/" if key == "/" else f"{key}/"
            if name.startswith(prefix):
                yield vhost, name.removeprefix(prefix)
