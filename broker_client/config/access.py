"""Models of what surrounds a connection: TLS, credentials, and the management API."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, SecretStr, model_validator

from broker_client.config.url import (
    MANAGEMENT_PORTS,
    UrlParts,
    build_url,
    parse_management_url,
)
from broker_client.config.values import Duration, Settings


class TlsConfig(Settings):
    """How the broker of an `amqps` address is trusted, and how it may know us.

    `tls` belongs to an `amqps` address; an `amqps` address is never spoken to in plain text. The
    files are looked for when the configuration is loaded.
    """

    cafile: str | None = None
    """PEM file of the authorities to trust; those of the system when left out."""
    certfile: str | None = None
    """PEM file of the client's certificate, for brokers that require one."""
    keyfile: str | None = None
    """PEM file of its private key; looked for in `certfile` when left out."""
    verify: bool = True
    """Refuse a broker whose certificate is not from a trusted authority. False also turns
    `verify_hostname` off."""
    verify_hostname: bool = True
    """Refuse a broker whose certificate is for another host."""

    @model_validator(mode="after")
    def _files_can_be_read(self) -> Self:
        for key in ("cafile", "certfile", "keyfile"):
            path = getattr(self, key)
            if path is not None:
                check_readable(key, path)
        if self.keyfile is not None and self.certfile is None:
            raise ValueError("keyfile needs its certificate: give certfile too")
        return self


def check_readable(key: str, path: str) -> None:
    """Refuse a path that leads to no file, or to one that cannot be read.

    Raises:
        ValueError: says which of the two.
    """
    if not os.path.exists(path) or os.path.isdir(path):
        raise ValueError(f"{key} {path!r}: there is no such file")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{key} {path!r} cannot be read")


class Credentials(NamedTuple):
    """Who we are to a broker."""

    user: str
    password: SecretStr


CredentialsSource = Callable[[], tuple[str, str] | Awaitable[tuple[str, str]]]
"""Called before each connect; returns user and password, plain or to be awaited."""


def read_secret(path: str) -> str:
    """What a file holds, without the line break at its end.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8.
    """
    with contextlib.suppress(UnicodeDecodeError):  # which shows the bytes
        return Path(path).read_text("utf-8-sig").rstrip("\r\n")
    raise ValueError(f"{path} is not UTF-8 text")


class ManagementConfig(Settings):
    """The HTTP API of a broker, which `assert` and `check` of a vhost use: a `url`, or its parts.

    `management: https://admin:secret@host` is enough; or give parts, and the rest is the
    connection's.
    """

    url: SecretStr | None = None
    """`http://user:password@host:port` or `https://...`. Leave it out to give the parts below."""
    scheme: Literal["http", "https"] = "http"
    """First part of the URL."""
    hostname: str | None = None
    """Host name or address; the connection's when left out."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """TCP port; 15672, or 15671 for https, when left out."""
    user: str | None = None
    """User name, not encoded; the connection's when left out."""
    password: SecretStr | None = None
    """Password, not encoded; the connection's when left out. Never printed."""
    timeout: Duration = 1.0
    """Time for one request."""

    @model_validator(mode="before")
    @classmethod
    def _parts_of_url(cls, value: object) -> object:
        if isinstance(value, str):
            value = {"url": value}
        if not isinstance(value, Mapping):
            return value
        given: dict[str, Any] = dict(value)
        url = given.get("url")
        if isinstance(url, SecretStr):
            url = url.get_secret_value()
        if not isinstance(url, str):
            return given
        parts = parse_management_url(url)
        for key in _PARTS:
            found, stated = getattr(parts, key), given.get(key)
            if isinstance(stated, SecretStr):
                stated = stated.get_secret_value()
            if not found:
                continue
            if stated is not None and str(stated) != str(found):
                raise ValueError(f"url and {key} contradict each other; give one of the two")
            given[key] = found
        return given

    def with_credentials(self, credentials: Credentials) -> ManagementConfig:
        """These settings, complete as they are, with what a connection's file or function said."""
        if self.user:
            return self
        return self.model_copy(update=credentials._asdict())

    def completed(self, hostname: str, user: str, password: SecretStr) -> ManagementConfig:
        """These settings with what they leave out taken from the connection."""
        password = password if self.password is None else self.password
        path = "" if self.url is None else parse_management_url(self.url.get_secret_value()).path
        parts = UrlParts(
            self.scheme,
            self.hostname or hostname,
            self.port or MANAGEMENT_PORTS[self.scheme],
            user if self.user is None else self.user,
            password.get_secret_value(),
            path=path,
        )
        known = {key: getattr(parts, key) for key in _PARTS} | {"password": password}
        return self.model_copy(update={**known, "url": SecretStr(build_url(parts))})

    @property
    def address(self) -> str:
        """The URL without user and password: what ``/api/...`` is appended to."""
        assert self.url is not None, "only those of a ConnectionConfig are complete"
        parts = parse_management_url(self.url.get_secret_value())
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port}{parts.path}"

    @property
    def masked_url(self) -> str | None:
        """The URL with its password hidden, fit to print."""
        if self.url is None:
            return None
        return build_url(parse_management_url(self.url.get_secret_value()), masked=True)

    def __repr_args__(self) -> Any:
        yield "url", self.masked_url
        yield "timeout", self.timeout


_PARTS = ("scheme", "hostname", "port", "user", "password")
