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
    """PEM file of the server's certificate, followed by intermediate certificates."""
    keyfile: str | None = None
    """PEM file of its private key; looked for in `certfile` when left out."""
    cafile: str | None = None
    """PEM file of the authorities that sign client certificates."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Whether clients are asked for a certificate. A given certificate is verified; with the
    mechanism `EXTERNAL` its common name is the user."""

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
    """Whole seconds between heartbeats, as proposed to clients, which may choose another value.
    0s proposes none."""
    frame_max: Annotated[ByteSize, Field(le=2**32 - 1)] = 131_072
    """Largest frame, at least 4096 bytes. With 0, a frame may be as large as the largest body."""
    channel_max: Annotated[int, Field(ge=0, le=65535)] = 2047
    """Maximum number of channels of a connection."""
    max_connections: Count = 0
    """Maximum number of connections."""
    max_connections_per_user: Count = 0
    """Maximum number of connections of each user."""
    max_consumers_per_channel: Count = 0
    """Maximum number of consumers of each channel."""
    max_queues_per_vhost: Count = 0
    """Maximum number of queues of each vhost."""
    max_login_failures: Count = 10
    """Maximum number of refused logins per second from one address; beyond it, connections from
    the address are closed without reading until the second is over."""
    handshake_timeout: Annotated[Duration, Field(gt=0)] = 10.0
    """Longest time from the connection to `connection.open`."""
    close_timeout: Annotated[Duration, Field(gt=0)] = 5.0
    """Longest wait for a client's `connection.close-ok`."""
    stop_timeout: Duration = 10.0
    """Longest time for a graceful stop."""
    write_buffer: Annotated[ByteSize, Field(ge=65536)] = 1024 * 1024
    """Maximum number of bytes that a client has not read before deliveries to it stop. At
    sixteen times this number, the server also stops reading from the client."""
    disk_free_limit: ByteSize = 48 * 1024 * 1024
    """Publishers are blocked while the disk with the file has less free space."""
    consumer_timeout: Duration = 1800.0
    """Time a delivery may stay unsettled before its channel is closed, as in RabbitMQ; 0s means
    no limit. `node.message_timeout` does not apply to clients of the server."""

    @model_validator(mode="after")
    def _frame_is_not_too_small(self) -> Self:
        if 0 < self.frame_max < LEAST_FRAME:
            raise ValueError(f"frame_max must be 0 or at least {LEAST_FRAME} bytes")
        return self
