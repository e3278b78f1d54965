"""The models of a whole configuration: vhosts, publications, subscriptions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from broker_client.config.connection import ConnectionConfig
from broker_client.config.consuming import (
    BUILT_IN_COUNTERS,
    CounterConfig,
    CountersConfig,
    ShovelConfig,
    SubscriptionConfig,
)
from broker_client.config.encryption import EncryptionConfig
from broker_client.config.node import NodeConfig
from broker_client.config.publishing import (
    ChannelPoolsConfig,
    PublicationConfig,
    PublishQueueConfig,
)
from broker_client.config.recovery import (
    Strategy,
)
from broker_client.config.scheduling import ScheduleConfig
from broker_client.config.server import ServerConfig
from broker_client.config.topology import (
    BindingConfig,
    ExchangeConfig,
    MadeUp,
    QueueConfig,
    qualified,
)
from broker_client.config.tracing import TracingConfig
from broker_client.config.values import Duration, Positive, Settings
from broker_client.errors import Problem


class VhostConfig(Settings):
    """A vhost: its connections and what is declared in it.

    It has further keys that the loader works into the others: `connection` (the same as
    `connections`), `publications` and `subscriptions` (of this vhost; their names must be unique in
    the file), and `defaults`.
    """

    yaml_keys: ClassVar[tuple[str, ...]] = (
        "connection",
        "publications",
        "subscriptions",
        "defaults",
    )

    name: str
    """Key of the vhost."""
    connections: Annotated[tuple[ConnectionConfig, ...], Field(validate_default=True)] = ()
    """Brokers to try, written `connection` or `connections`: a URL, a mapping, or a list of
    these; the built-in broker, `embedded://`, when left out."""
    connection_strategy: Literal["random", "fixed"] = "random"
    """`fixed` tries the brokers in the order given; `random` in a random order that is chosen at
    each start, the same for every vhost."""
    separate_connections: bool = True
    """Use separate connections for publishing and consuming, so that a broker that blocks
    publishers does not block consumers."""
    startup: Literal["fail", "retry"] = "fail"
    """What happens when no broker answers at the start: `fail` at once, or `retry`."""
    startup_timeout: Duration | None = None
    """Longest time for `retry`; unlimited when left out."""
    assert_: bool = Field(default=False, validation_alias="assert")
    """Create the vhost through the management API."""
    check: bool = False
    """Fail unless the vhost already exists, according to the management API."""
    namespace: MadeUp = None
    """Prefix of the names of exchanges and queues on the broker: a text, or true for a new UUID
    at each start."""
    concurrency: Positive = 1
    """Number of channels used to declare exchanges, queues and bindings."""
    exchanges: Annotated[dict[str, ExchangeConfig], Field(validate_default=True)] = Field(
        default_factory=dict
    )
    """Exchanges by name. The default exchange, '', always exists."""
    queues: dict[str, QueueConfig] = Field(default_factory=dict)
    """Queues by name."""
    bindings: tuple[BindingConfig, ...] = ()
    """Bindings."""
    publication_channel_pools: ChannelPoolsConfig = Field(
        default_factory=ChannelPoolsConfig.model_construct
    )
    """Channels for publishing."""
    publish_queue: PublishQueueConfig = Field(default_factory=PublishQueueConfig.model_construct)
    """Waiting publishes."""
    redeliveries: CountersConfig = Field(default_factory=CountersConfig.model_construct)
    """Counters of redeliveries for subscriptions of this vhost."""

    @field_validator("connections")
    @classmethod
    def _connections_know_their_vhost(
        cls, value: tuple[ConnectionConfig, ...], info: ValidationInfo
    ) -> tuple[ConnectionConfig, ...]:
        name = info.data.get("name", "/")
        return tuple(each.for_vhost(name) for each in value or (ConnectionConfig(),))

    @field_validator("exchanges")
    @classmethod
    def _exchanges_know_their_namespace(
        cls, value: dict[str, ExchangeConfig], info: ValidationInfo
    ) -> dict[str, ExchangeConfig]:
        # AMQP 0-9-1 §3.1.3.1: every vhost has a direct exchange without a name.
        every = {"": ExchangeConfig(name="", type="direct"), **value}
        return {key: each.within(info.data.get("namespace")) for key, each in every.items()}

    @field_validator("queues")
    @classmethod
    def _queues_know_their_namespace(
        cls, value: dict[str, QueueConfig], info: ValidationInfo
    ) -> dict[str, QueueConfig]:
        # AMQP 0-9-1 §1.7.2.1: a queue declared as "" gets a name of the broker's, another one
        # after each reconnect; nothing here could be bound to it, or consume from it.
        if "" in value:
            raise ValueError(
                "a queue needs a name; for one of each process give it a name and "
                "{reply_to: true, options: {exclusive: true}}"
            )
        return {key: each.within(info.data.get("namespace")) for key, each in value.items()}

    @field_validator("bindings")
    @classmethod
    def _bindings_know_their_ends(
        cls, value: tuple[BindingConfig, ...], info: ValidationInfo
    ) -> tuple[BindingConfig, ...]:
        queues: dict[str, QueueConfig] = info.data.get("queues", {})
        resolved = []
        for binding in value:
            queue = queues.get(binding.destination)
            to_queue = queue is not None and binding.destination_type == "queue"
            known = queue.qualified_name if queue is not None and to_queue else None
            resolved.append(binding.within(info.data.get("namespace")).towards(known))
        return tuple(resolved)

    def queue_name(self, name: str) -> str:
        """The name on the broker of the queue called `name` in this vhost."""
        if name in self.queues:
            return self.queues[name].qualified_name
        return qualified(self.namespace, name)

    def exchange_name(self, name: str) -> str:
        """The name on the broker of the exchange called `name` in this vhost."""
        return qualified(self.namespace, name)


class BrokerConfig(Settings):
    """Everything: what `load_config` returns and `Broker.create` takes."""

    yaml_keys: ClassVar[tuple[str, ...]] = ("defaults", "profile")

    vhosts: dict[str, VhostConfig]
    """Vhosts by name; at least one."""
    publications: dict[str, PublicationConfig] = Field(default_factory=dict)
    """Publications by name, those of the vhosts included."""
    subscriptions: dict[str, SubscriptionConfig] = Field(default_factory=dict)
    """Subscriptions by name, those of the vhosts included."""
    shovels: dict[str, ShovelConfig] = Field(default_factory=dict)
    """Shovels by name."""
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict)
    """Schedules by name."""
    recovery: dict[str, tuple[Strategy, ...]] = Field(default_factory=dict)
    """Recovery chains by name."""
    encryption: dict[str, EncryptionConfig] = Field(default_factory=dict)
    """Encryption profiles by name."""
    redeliveries: CountersConfig = Field(default_factory=CountersConfig.model_construct)
    """Counters of redeliveries."""
    node: NodeConfig = Field(default_factory=NodeConfig.model_construct)
    """Settings of the built-in broker; each Broker has one."""
    tracing: TracingConfig | None = None
    """Traces with OpenTelemetry; off when left out."""
    server: ServerConfig = Field(default_factory=ServerConfig.model_construct)
    """Settings of the built-in broker on a port."""

    _implied: dict[str, tuple[PublicationConfig, SubscriptionConfig]] = PrivateAttr(
        default_factory=dict
    )
    _ranks: dict[str, float] = PrivateAttr(default_factory=dict)
    _warnings: tuple[Problem, ...] | None = PrivateAttr(default=None)

    @field_validator("vhosts")
    @classmethod
    def _some_vhost(cls, value: dict[str, VhostConfig]) -> dict[str, VhostConfig]:
        if not value:
            raise ValueError("No vhosts specified")
        return value

    # ------------------------------------------------------------------ publications

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

    def implied_subscriptions(self) -> Iterator[SubscriptionConfig]:
        """One for each queue, as `find_subscription` makes them; declared ones are not among
        them."""
        for key, vhost in self.vhosts.items():
            for queue in vhost.queues:
                name = _implied_name(key, queue)
                found = self.find_subscription(name)
                if found is not None and name not in self.subscriptions:
                    yield found

    def set_implied(
        self, templates: Mapping[str, tuple[PublicationConfig, SubscriptionConfig]]
    ) -> None:
        """What the layers say of entries that nobody declared, by vhost; for the loader."""
        self._implied = dict(templates)

    def _named(self, name: str) -> Iterator[tuple[VhostConfig, str]]:
        for key, vhost in self.vhosts.items() if isinstance(name, str) else ():
            prefix = _implied_name(key, "")
            if name.startswith(prefix):
                yield vhost, name.removeprefix(prefix)

    # ------------------------------------------------------------------ names on the broker

    def qualify(self, vhost: str, name: str) -> str:
        """The name on the broker of the queue or exchange called `name` in `vhost`.

        Where both are called so, it is the queue's; they differ only when it has a `reply_to`.

        Raises:
            KeyError: no such vhost.
        """
        return self.vhosts[vhost].queue_name(name)

    def target_of(self, publication: PublicationConfig) -> tuple[str, str]:
        """Exchange and routing key of a publication, by their names on the broker."""
        vhost = self.vhosts[publication.vhost]
        if publication.queue is not None:
            # AMQP 0-9-1 §3.1.3.1: the default exchange routes to the queue of that name.
            return "", vhost.queue_name(publication.queue)
        return vhost.exchange_name(publication.exchange or ""), publication.routing_key

    def reply_queue_of(self, publication: PublicationConfig) -> str | None:
        """What a publication's messages name as queue for answers (as in rascal)."""
        if publication.options.reply_to is not None or publication.reply_to is None:
            return publication.options.reply_to
        return self.vhosts[publication.vhost].queue_name(publication.reply_to)

    def source_of(self, subscription: SubscriptionConfig) -> str:
        """The queue of a subscription, by its name on the broker."""
        return self.vhosts[subscription.vhost].queue_name(subscription.queue)

    # ------------------------------------------------------------------ what is chosen by name

    def connections_of(self, vhost: str) -> tuple[ConnectionConfig, ...]:
        """The brokers of `vhost` in the order to try them.

        `random` draws one place in the order for each ``host:port``, kept as long as this
        configuration, so that all vhosts of a Broker go to one node first (as in rascal).
        """
        config = self.vhosts[vhost]
        if config.connection_strategy == "fixed" or len(config.connections) == 1:
            return config.connections

        def rank(connection: ConnectionConfig) -> float:
            return self._ranks.setdefault(connection.place, random.random())  # noqa: S311 - no secret

        return tuple(sorted(config.connections, key=rank))

    def counter_of(self, subscription: SubscriptionConfig) -> CounterConfig:
        """The counter of a subscription: the vhost's, the file's or a built-in one.

        Raises:
            KeyError: no such name; the loader refuses that.
        """
        vhost = self.vhosts[subscription.vhost]
        known = BUILT_IN_COUNTERS | self.redeliveries.counters | vhost.redeliveries.counters
        return known[subscription.redeliveries.counter]

    def profiles_of(self, subscription: SubscriptionConfig) -> Mapping[str, EncryptionConfig]:
        """The profiles a subscription decrypts with, by name."""
        return self.encryption if subscription.encryption is None else subscription.encryption

    # ------------------------------------------------------------------ warnings

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Likely mistakes in what is allowed; found by `load_config`."""
        return self._warnings or ()

    @property
    def is_checked(self) -> bool:
        """True once `load_config` has looked for warnings."""
        return self._warnings is not None

    def set_warnings(self, warnings: tuple[Problem, ...]) -> None:
        self._warnings = warnings


def _implied_name(vhost: str, entity: str) -> str:
    return f"/{entity}" if vhost == "/" else f"{vhost}/{entity}"
