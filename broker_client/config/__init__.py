"""The settings: frozen models, with every default on its field, and how YAML becomes them.

`loader.load_config` makes a `BrokerConfig` from YAML. In Python the models are built directly, with
durations in float seconds.
"""

from __future__ import annotations

from broker_client.config.access import ManagementConfig, TlsConfig
from broker_client.config.backoff import BackoffConfig, RetryConfig
from broker_client.config.claim_check import ClaimCheckConfig
from broker_client.config.connection import ConnectionConfig
from broker_client.config.consuming import (
    BatchConfig,
    BreakerConfig,
    ConsumeOptions,
    CounterConfig,
    CountersConfig,
    DeduplicateConfig,
    RedeliveriesConfig,
    Replies,
    ShovelConfig,
    SubscriptionConfig,
)
from broker_client.config.encryption import EncryptionConfig
from broker_client.config.models import BrokerConfig, VhostConfig
from broker_client.config.node import EventLogConfig, NodeConfig, ScanConfig
from broker_client.config.publishing import (
    ChannelPoolsConfig,
    PoolConfig,
    PublicationConfig,
    PublicationOptions,
    PublishQueueConfig,
)
from broker_client.config.recovery import (
    Ack,
    Forward,
    ForwardOptions,
    Nack,
    Republish,
    Strategy,
    strategies_from,
)
from broker_client.config.scheduling import ScheduleConfig
from broker_client.config.server import ServerConfig, ServerTlsConfig
from broker_client.config.topology import (
    BindingConfig,
    BindingOptions,
    ExchangeConfig,
    ExchangeOptions,
    QueueConfig,
    QueueOptions,
)
from broker_client.config.tracing import TracingConfig
from broker_client.config.values import Duration

__all__ = [
    "Ack",
    "BackoffConfig",
    "BatchConfig",
    "BindingConfig",
    "BindingOptions",
    "BreakerConfig",
    "BrokerConfig",
    "ChannelPoolsConfig",
    "ClaimCheckConfig",
    "ConnectionConfig",
    "ConsumeOptions",
    "CounterConfig",
    "CountersConfig",
    "DeduplicateConfig",
    "Duration",
    "EncryptionConfig",
    "EventLogConfig",
    "ExchangeConfig",
    "ExchangeOptions",
    "Forward",
    "ForwardOptions",
    "ManagementConfig",
    "Nack",
    "NodeConfig",
    "PoolConfig",
    "PublicationConfig",
    "PublicationOptions",
    "PublishQueueConfig",
    "QueueConfig",
    "QueueOptions",
    "RedeliveriesConfig",
    "Replies",
    "Republish",
    "RetryConfig",
    "ScanConfig",
    "ScheduleConfig",
    "ServerConfig",
    "ServerTlsConfig",
    "ShovelConfig",
    "Strategy",
    "SubscriptionConfig",
    "TlsConfig",
    "TracingConfig",
    "VhostConfig",
    "strategies_from",
]
