"""Models of a connection: where the broker is, and how it is tried again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from broker_client.config.access import (
    Credentials,
    CredentialsSource,
    ManagementConfig,
    TlsConfig,
    check_readable,
    read_secret,
)
from broker_client.config.backoff import RetryConfig
from broker_client.config.connection_parts import (
    LOGIN,
    SOURCES,
    revealed,
    with_parts,
    with_source_of_credentials,
    with_url,
)
from broker_client.config.problems import complaints_of
from broker_client.config.url import build_url, parse_url
from broker_client.config.values import (
    YAML_CONTEXT,
    ByteSize,
    Duration,
    Settings,
    WholeSeconds,
)


class ConnectionConfig(Settings):
    """Where a broker is: a URL, or a mapping with a `url` or its parts. After loading, both are set
    and agree.

    `embedded://` is the built-in broker with everything in memory, private to this Broker;
    `embedded://NAME` is shared by that name within the process; what has a `/` is a file that keeps
    the messages: `embedded:///var/lib/app/broker.db`, or `embedded://./broker.db` from the working
    directory. For RabbitMQ, write `amqp://user:password@host:5672/vhost`, or the parts as keys.

    - Special characters in a URL must be percent-encoded (`@` as `%40`, `/` as `%2F`, `#` as
      `%23`). A raw one is an error that names the part. As parts they are written as they are.
    - Without a path the vhost on the broker is the name it has in the file; the path `/` is the
      vhost `/`; any other path is decoded: `a%2Fb` is `a/b`.
    - User and password default to `guest`, the port to 5672, or 5671 for `amqps`.
    - The query takes RabbitMQ's parameters: `heartbeat` (seconds), `connection_timeout`
      (milliseconds), `channel_max`, `frame_max`, `auth_mechanism=plain`, and for `amqps`
      `cacertfile`, `certfile`, `keyfile`, `verify=verify_peer` or `verify_none`, and
      `fail_if_no_peer_cert`, which says nothing to a client. Any other is an error.
    """

    url: SecretStr = SecretStr("embedded://")
    """`embedded://`, `embedded://NAME`, `embedded:///path/to/file.db`,
    `amqp://user:password@host:port/vhost` or `amqps://...`, its parts percent-encoded. Leave it
    out to give the parts below."""
    scheme: Literal["embedded", "amqp", "amqps"] = "amqp"
    """First part of the URL."""
    hostname: str = "localhost"
    """Host name or address."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """TCP port; 5672, or 5671 for amqps, when left out."""
    user: str = "guest"
    """User name, not encoded."""
    password: SecretStr = SecretStr("guest")
    """Password, not encoded. Never printed."""
    user_file: str | None = None
    """File that holds the user name, in place of `user`; read at each connect."""
    password_file: str | None = None
    """File that holds the password, in place of `password`; read at each connect, so a password
    that changes needs no restart. A line break at the end is ignored."""
    credentials: Annotated[CredentialsSource | None, WithJsonSchema({})] = None
    """In Python only: a function, plain or async, that is called at each connect and returns user
    and password."""
    refresh_credentials: Annotated[Duration, Field(gt=0)] | None = None
    """How often `password_file` or `credentials` is read again while connected; a changed
    password is sent to the broker (connection.update-secret). For tokens that expire, choose
    less than their lifetime. When left out, they are only read at each connect."""
    vhost: str | None = None
    """Vhost on the broker; the name of the vhost in this file when left out."""
    connect_timeout: Duration = 10.0
    """Time for one attempt to connect, and for each answer of the broker to a declaration."""
    heartbeat: WholeSeconds = 10
    """Whole seconds between heartbeats; 0s turns them off."""
    retry: RetryConfig = Field(default_factory=RetryConfig.model_construct)
    """Waits between attempts to connect."""
    tls: Annotated[TlsConfig | None, Field(validate_default=True)] = None
    """Trusted authorities and certificates; for `amqps` addresses only."""
    name: str | None = None
    """Name of the connection, shown by the broker's management."""
    client_properties: dict[str, Any] = Field(default_factory=dict)
    """Further client properties sent to the broker."""
    channel_max: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Maximum number of channels of the connection; 0 means no limit. The broker's proposal when
    left out."""
    frame_max: Annotated[ByteSize, Field(le=2**32 - 1)] | None = None
    """Largest frame, at least 4096 bytes; 0 means no limit. The broker's proposal when left out."""
    max_message_size: ByteSize | None = None
    """Largest body that may be published; a larger one is refused before it is sent. 0 means no
    limit. Brokers do not report their limit: when left out, RabbitMQ's default is assumed, 16MiB
    from version 4.0 on and 128MiB before. The limit in a broker's refusal replaces it until the
    connection ends."""
    management: ManagementConfig = Field(
        default_factory=ManagementConfig.model_construct, validate_default=True
    )
    """The broker's management API: a URL or a mapping. Host, user and password default to the
    connection's."""

    @field_validator("frame_max")
    @classmethod
    def _frame_is_not_too_small(cls, value: int | None) -> int | None:
        # AMQP 0-9-1 §1.4.2.5: frame-min-size is 4096.
        if value is not None and 0 < value < 4096:
            raise ValueError("must be 0 or at least 4096 bytes")
        return value

    @field_validator("credentials", mode="before")
    @classmethod
    def _credentials_are_a_function(cls, value: object) -> object:
        if value is not None and not callable(value):
            raise ValueError(
                "must be a function, which only Python can give; in a file write user_file and "
                "password_file"
            )
        return value

    @field_validator("user_file", "password_file")
    @classmethod
    def _file_can_be_read(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            check_readable(str(info.field_name), value)
        return value

    @field_validator("management")
    @classmethod
    def _management_is_where_the_broker_is(
        cls, value: ManagementConfig, info: ValidationInfo
    ) -> ManagementConfig:
        known = info.data
        if not known.keys() >= {"scheme", *LOGIN} or known["scheme"] == "embedded":
            return value
        return value.completed(known["hostname"], known["user"], known["password"])

    @field_validator("tls")
    @classmethod
    def _tls_goes_with_amqps(
        cls, value: TlsConfig | None, info: ValidationInfo
    ) -> TlsConfig | None:
        scheme = info.data.get("scheme", "amqps")
        if scheme == "amqps":
            return value or TlsConfig()
        if value is not None:
            raise ValueError(f"needs an amqps:// address; this one is {scheme}://")
        return None

    @model_validator(mode="before")
    @classmethod
    def _url_and_parts_agree(cls, value: object) -> object:
        if isinstance(value, str):
            value = {"url": value}
        if not isinstance(value, Mapping):
            return value
        given = {key: each for key, each in value.items() if each is not None or key not in _KEYS}
        if isinstance(given.get("management"), str):
            given["management"] = {"url": given["management"]}
        url = revealed(given.get("url"))
        if url is None:
            given = with_url(given)
        elif isinstance(url, str):
            given = with_parts(given, parse_url(url))
        return with_source_of_credentials(given, value)

    def vhost_name(self, key: str) -> str:
        """The vhost to open, when the vhost is called `key` in the configuration."""
        return key if self.vhost is None else self.vhost

    def for_vhost(self, key: str) -> ConnectionConfig:
        """This connection with `vhost` and the path of `url` settled for the vhost `key`."""
        vhost = self.vhost_name(key)
        parts = parse_url(self.url.get_secret_value())
        if parts.scheme != "embedded":
            parts = parts._replace(vhost=vhost)
        return self.model_copy(update={"vhost": vhost, "url": SecretStr(build_url(parts))})

    async def current_credentials(self) -> Credentials:
        """User and password as they are now: read from their files, or asked for.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not UTF-8, or the function returned something else.
            Exception: what the function raised.
        """
        if self.credentials is not None:
            found = self.credentials()
            if inspect.isawaitable(found):
                found = await found
            if isinstance(found, tuple | list) and [*map(type, found)] == [str, str]:
                return Credentials(found[0], SecretStr(found[1]))
            del found  # a traceback may show locals
            raise ValueError("the function `credentials` must return (user, password)")
        user, password = self.user, self.password
        if self.user_file is not None:
            user = read_secret(self.user_file)
        if self.password_file is not None:
            password = SecretStr(read_secret(self.password_file))
        return Credentials(user, password)

    @property
    def has_own_credentials(self) -> bool:
        """True when user or password are found at each connect, by a file or a function."""
        return any(getattr(self, key) is not None for key in SOURCES)

    @property
    def masked_url(self) -> str:
        """The URL with its password hidden, fit to print."""
        return build_url(parse_url(self.url.get_secret_value()), masked=True)

    @property
    def is_embedded(self) -> bool:
        return self.scheme == "embedded"

    @property
    def store_path(self) -> str | None:
        """File of the built-in broker; None keeps everything in memory."""
        return parse_url(self.url.get_secret_value()).path or None

    @property
    def place(self) -> str:
        """``host:port``, or the address of the built-in broker: what is tried as one."""
        return self.masked_url if self.is_embedded else f"{self.hostname}:{self.port}"

    def __repr_args__(self) -> Any:
        yield "url", self.masked_url
        hidden = {"url", "scheme", "hostname", "port", "user", "password", "management", *SOURCES}
        yield from ((key, value) for key, value in super().__repr_args__() if key not in hidden)


def connection_from(url: str) -> ConnectionConfig:
    """The connection that is just `url`.

    Raises:
        ValueError: says what is wrong with it, without any part that may be secret.
    """
    try:
        return ConnectionConfig.model_validate({"url": url}, context=YAML_CONTEXT)
    except ValidationError as error:
        problems = complaints_of(error, ConnectionConfig)
        raise ValueError("; ".join(message for _, message in problems)) from None


_KEYS = frozenset(ConnectionConfig.model_fields)
