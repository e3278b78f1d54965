"""Models of the built-in broker."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from broker_client.config.listen import ListenAddresses
from broker_client.config.values import ByteSize, Count, Duration, Positive, Settings


class ScanConfig(Settings):
    """The loop that looks for what has become due, after nsq's queueScanLoop."""

    interval: Annotated[Duration, Field(gt=0)] = 0.1
    """Time between two checks of the queues that have something due."""
    refresh_interval: Annotated[Duration, Field(gt=0)] = 5.0
    """How often the number of workers is adapted to the number of queues."""
    selection_count: Positive = 20
    """Number of queues checked at a time."""
    dirty_percent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """Check again at once if more than this share of them had something due."""
    worker_pool_max: Positive = 4
    """Maximum number of workers."""


class EventLogConfig(Settings):
    """Where the built-in broker writes what happens to each message, for analysis."""

    path: str | None = None
    """Folder of the log; no log is written when left out."""
    max_bytes: ByteSize = 64 * 1024 * 1024
    """Size at which a new file is started."""
    max_age: Duration = 60.0
    """Age at which a new file is started."""
    buffer: Count = 10_000
    """Maximum number of events waiting to be written; further events are dropped and counted."""


class NodeConfig(Settings):
    """Settings of the built-in broker; without effect on other brokers.

    One node serves all `embedded://` addresses of a Broker, so its settings stand at the root of
    the file.
    """

    listen: ListenAddresses = ()
    """Addresses on which the built-in broker of this Broker listens, for other programs; see
    [the server](../server.md): `127.0.0.1:5672`, `amqps://0.0.0.0:5671`, `unix:///run/broker.sock`.
    One, or a list."""
    control: bool = True
    """Create a local socket beside the file of the built-in broker, through which
    `broker-client` reaches it while the application runs; see [the command
    line](../cli.md#where-commands-go)."""
    compatibility: Literal["3.10", "4.3"] = "4.3"
    """Version of RabbitMQ to behave like where versions differ; see [what the built-in broker
    speaks](../amqp-support.md#rabbitmq-by-version)."""
    message_timeout: Duration = 60.0
    """Time a delivery may stay unsettled before its queue takes it back."""
    max_message_timeout: Duration = 900.0
    """Longest time a delivery may be kept by touching it."""
    max_requeue_timeout: Duration = 3600.0
    """Longest delay of a deferred requeue."""
    max_publish_delay: Duration = 25 * 86_400.0
    """Longest delay of a publish with `x-delay`; a longer one is refused."""
    max_message_size: ByteSize | None = None
    """Largest body that may be published; 0 means no limit. When left out, RabbitMQ's default:
    16 MiB, or 128 MiB with `compatibility: "3.10"`."""
    memory_limit: ByteSize = 64 * 1024 * 1024
    """Bytes of bodies that a node with a file keeps in memory; the rest is in the file only."""
    memory_high_watermark: ByteSize = 1024 * 1024 * 1024
    """Publishers are blocked while a node, with a file or without, has more bytes of bodies than
    this in memory; 0 means no limit."""
    scan: ScanConfig = Field(default_factory=ScanConfig.model_construct)
    """The loop that looks for what is due."""
    event_log: EventLogConfig = Field(default_factory=EventLogConfig.model_construct)
    """The log of deliveries."""

    @model_validator(mode="after")
    def _touching_can_only_lengthen(self) -> Self:
        if self.max_message_timeout < self.message_timeout:
            raise ValueError(
                f"max_message_timeout ({self.max_message_timeout:g}s) is below message_timeout "
                f"({self.message_timeout:g}s)"
            )
        return self
