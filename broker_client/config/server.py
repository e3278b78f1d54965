"""Models of the built-in broker on a port."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from broker_client.config.access import check_readable
from broker_client.config.values import ByteSize, Count, Duration, Settings, WholeSeconds

LEAST_FRAME = 4096  # bytes; AMQP 0-9-1 §1.4.2.6: every peer takes frames of this size


class ServerTlsConfig(Settings):
    """Certificates of the addresses that start with `amqps://`.

    Changed files are read again within seconds, and on SIGHUP, for the connections that come
    from then on.
    """

    certfile: str
    """PEM file of the server's certificate, with the intermediate ones behind it."""
    keyfile: str | None = None
    """PEM file of its private key; looked for in `certfile` when left out."""
    cafile: str | None = None
    """PEM file of the authorities that sign client certificates."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Whether clients are asked for a certificate. One that is given is checked; with the mechanism
    `EXTERNAL` its common name is the user."""

    @model_validator(mode="after")
    def _files_can_be_read(self) -> Self:
        for key in ("certfile", "keyfile", "cafile"):
            path = getattr(self, key)
            if path is not None:
                check_readable(key, path)
        if self.client_certificates != "none" and self.cafile is None:
            raise ValueError("client_certificates needs cafile: who signs them")
        return self


class ServerConfig(Settings):
    """The built-in broker on a port: `broker-client serve`, and `node.listen`.

    A limit of 0 is no limit.
    """

    tls: ServerTlsConfig | None = None
    """Certificates; needed for `amqps://`."""
    heartbeat: WholeSeconds = 60
    """Whole seconds between heartbeats that clients are offered; they may ask for others. 0s offers
    none."""
    frame_max: Annotated[ByteSize, Field(le=2**32 - 1)] = 131_072
    """Largest frame; at least 4096 bytes. With 0 one may be as large as the largest body."""
    channel_max: Annotated[int, Field(ge=0, le=65535)] = 2047
    """Most channels of a connection."""
    max_connections: Count = 0
    """Most connections."""
    max_connections_per_user: Count = 0
    """Most connections of each user."""
    max_consumers_per_channel: Count = 0
    """Most consumers of each channel."""
    max_queues_per_vhost: Count = 0
    """Most queues of each vhost."""
    max_login_failures: Count = 10
    """Refused logins in a second from one address; more connections from it are closed unread until
    the second is over."""
    handshake_timeout: Annotated[Duration, Field(gt=0)] = 10.0
    """Time from the connection to its open vhost."""
    close_timeout: Annotated[Duration, Field(gt=0)] = 5.0
    """Time to wait for a client's connection.close-ok."""
    stop_timeout: Duration = 10.0
    """Longest time for a graceful stop."""
    write_buffer: Annotated[ByteSize, Field(ge=65536)] = 1024 * 1024
    """Bytes that may wait for a client to read them before deliveries to it stop. At sixteen times
    as much, nothing is read from it either."""
    disk_free_limit: ByteSize = 48 * 1024 * 1024
    """Publishers are blocked while the disk of the file has less room."""
    consumer_timeout: Duration = 1800.0
    """Time a delivery may stay unsettled before its channel is closed, as RabbitMQ does it; 0s is
    for ever. `node.message_timeout` does not hold for clients of the server."""

    @model_validator(mode="after")
    def _frame_is_not_too_small(self) -> Self:
        if 0 < self.frame_max < LEAST_FRAME:
            raise ValueError(f"frame_max must be 0 or at least {LEAST_FRAME} bytes")
        return self
