"""Options to connectors: which brokers, which vhost, which queue or exchange."""

from __future__ import annotations

import os
import random
from typing import NamedTuple

from broker_client.config import BrokerConfig, ConnectionConfig, PublicationConfig, RetryConfig
from broker_client.config.connection import connection_from
from broker_client.config.loader import load_config
from broker_client.connection.addresses import Addresses
from broker_client.connection.connectors import Network
from broker_client.errors import UnknownNameError
from broker_client.spark.errors import OptionError
from broker_client.spark.options import CommonOptions, SinkOptions, SourceOptions
from broker_client.transport.base import Connector, Link

_RETRY = RetryConfig(min=0.1, max=5.0)  # between rounds over the addresses
_EMBEDDED = (
    "is a broker inside one process, and Spark's readers and writers are other processes: give the "
    "amqp:// address of a RabbitMQ, or use DriverPublisher"
)


class Target(NamedTuple):
    """Where a sink publishes to, unless a row says otherwise."""

    exchange: str
    routing_key: str
    publication: PublicationConfig | None


def connectors(options: CommonOptions) -> list[Connector]:
    """The brokers of `options`, in a random order: workers spread over a cluster.

    Raises:
        OptionError: an address cannot be used from here.
        ConfigError: the file of `configFile` is wrong.
    """
    made = _from_file(options) if options.config_file is not None else _from_urls(options)
    random.shuffle(made)
    return made


def _from_urls(options: CommonOptions) -> list[Connector]:
    option = "url" if options.url is not None else "urlEnv"
    text = options.url
    if options.url_env is not None:
        text = os.environ.get(options.url_env)
        if not text:
            raise OptionError("urlEnv", f"names {options.url_env}, which is not set here")
    made: list[Connector] = []
    for url in (text or "").split(","):
        try:
            connection = connection_from(url.strip())
        except ValueError as error:
            raise OptionError(option, str(error)) from None
        if connection.is_embedded:
            raise OptionError(option, _EMBEDDED)
        vhost = options.vhost or connection.vhost_name("/")
        connection = connection.model_copy(update={"vhost": vhost})
        made.append(_connector(connection, vhost, option))
    return made


def _from_file(options: CommonOptions) -> list[Connector]:
    config = _load(options)
    vhost = _vhost(config, options)
    made: list[Connector] = []
    for connection in config.vhosts[vhost].connections:
        if connection.is_embedded:
            raise OptionError("configFile", f"says embedded://, which {_EMBEDDED}")
        made.append(_connector(connection, vhost, f"vhosts.{vhost}.connection"))
    return made


class _Impatient:
    """Gives one attempt no more than the `connect_timeout` of its address: another may answer."""

    def __init__(self, connector: Connector, connect_timeout: float) -> None:
        self._connector, self._connect_timeout = connector, connect_timeout

    def __repr__(self) -> str:
        return repr(self._connector)

    @property
    def url(self) -> str:
        return self._connector.url

    async def connect(self, *, timeout: float) -> Link:
        return await self._connector.connect(timeout=min(timeout, self._connect_timeout))


def _connector(connection: ConnectionConfig, vhost: str, place: str) -> Connector:
    connector = Network(connection, vhost, place).connector(_name())
    return _Impatient(connector, connection.connect_timeout)


def _name() -> str:
    """Of connections, as RabbitMQ's management shows them: the process tells whose they are."""
    return f"broker_client spark, process {os.getpid()}"


def _load(options: CommonOptions) -> BrokerConfig:
    assert options.config_file is not None
    return load_config(options.config_file)


def _vhost(config: BrokerConfig, options: CommonOptions) -> str:
    if options.vhost is not None:
        name = options.vhost
    elif isinstance(options, SourceOptions) and options.subscription is not None:
        subscription = config.find_subscription(options.subscription)
        if subscription is None:
            known = list(config.subscriptions)
            raise UnknownNameError("subscription", options.subscription, known)
        name = subscription.vhost
    elif isinstance(options, SinkOptions) and options.publication is not None:
        name = _publication(config, options.publication).vhost
    elif len(config.vhosts) == 1:
        name = next(iter(config.vhosts))
    else:
        raise OptionError("vhost", f"is needed: {options.config_file} has several")
    if name not in config.vhosts:
        raise UnknownNameError("vhost", name, list(config.vhosts))
    return name


def _publication(config: BrokerConfig, name: str) -> PublicationConfig:
    publication = config.find_publication(name)
    if publication is None:
        raise UnknownNameError("publication", name, list(config.publications))
    if publication.encryption is not None or publication.delay is not None:
        raise OptionError(
            "publication",
            f"{name!r} encrypts or delays, which executors cannot do; use DriverPublisher",
        )
    return publication


def queue_of(options: SourceOptions) -> str:
    """The queue to consume, by its name on the broker."""
    if options.subscription is None:
        assert options.queue is not None
        return options.queue
    config = _load(options)
    subscription = config.find_subscription(options.subscription)
    if subscription is None:
        known = list(config.subscriptions)
        raise UnknownNameError("subscription", options.subscription, known)
    return config.source_of(subscription)


def target_of(options: SinkOptions) -> Target:
    """Exchange and routing key to publish to."""
    if options.publication is None:
        return Target(options.exchange or "", options.routing_key or "", None)
    config = _load(options)
    publication = _publication(config, options.publication)
    exchange, routing_key = config.target_of(publication)
    if options.routing_key is not None:
        routing_key = options.routing_key
    return Target(exchange, routing_key, publication)


async def connect_any(brokers: list[Connector], *, timeout: float) -> Link:
    """A link to the first broker that answers; rounds are repeated until `timeout` seconds.

    Raises:
        TransportError: none did; this is what the last one said.
    """
    addresses = Addresses(brokers, retry=_RETRY, connect_timeout=timeout)
    return await addresses.connect(timeout=timeout)
