"""Values with a rule of their own: durations, sizes and broker URLs, and the base of the models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

YAML_CONTEXT = {"source": "yaml"}
"""Validation context under which a bare number is no duration."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_PATTERN = r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"
_DURATION = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*")

_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([kKmMgG]i?)?[bB]?\s*$"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def from_yaml(info: ValidationInfo) -> bool:
    """True where the rules of the YAML hold."""
    return bool((info.context or {}).get("source") == YAML_CONTEXT["source"])


class Settings(BaseModel):
    """Base of every model: unknown keys refused, values fixed, input never shown in errors."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_by_name=True,
        validate_by_alias=True,
    )
    yaml_keys: ClassVar[tuple[str, ...]] = ()
    """Further keys that the loader understands and turns into fields."""

    @model_validator(mode="before")
    @classmethod
    def _empty_keys_count_as_not_written(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping) or not from_yaml(info):
            return value
        known = {field.validation_alias or name for name, field in cls.model_fields.items()}
        return {key: each for key, each in value.items() if each is not None or key not in known}

    def __str__(self) -> str:
        return repr(self)


def duration_seconds(value: object, *, bare_allowed: bool = True) -> float:
    """Seconds from ``"250ms"``, ``"10s"``, ``"2m"``, ``"1h"``, ``"1d"`` or, in Python, a number.

    Raises:
        ValueError: no duration, a negative one, or a bare number where none is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a duration such as 250ms, 10s, 2m or 1h")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a duration; write 250ms, 10s, 2m or 1h")
        number, unit = match.groups()
        if not unit:
            raise ValueError(_no_unit(number))
        if unit not in _UNITS:
            raise ValueError(f"{value!r} has an unknown unit {unit!r}; allowed: ms, s, m, h, d")
        seconds = float(number) * _UNITS[unit]
    elif bare_allowed:
        seconds = float(value)
    else:
        raise ValueError(_no_unit(f"{value:g}" if isinstance(value, float) else str(value)))
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("a duration cannot be negative or infinite")
    return seconds


def _no_unit(number: str) -> str:
    return f"{number} has no unit: write {number}s or {number}ms"


def _seconds(value: object, info: ValidationInfo) -> float:
    return duration_seconds(value, bare_allowed=not from_yaml(info))


def _whole_seconds(value: object, info: ValidationInfo) -> int:
    seconds = _seconds(value, info)
    if seconds != int(seconds):
        # AMQP 0-9-1 §1.4.2.6: heartbeat is a short integer of seconds.
        raise ValueError("must be whole seconds")
    return int(seconds)


def size_bytes(value: object) -> int:
    """Bytes from a whole number or from text such as ``"64MiB"`` or ``"10MB"``.

    Raises:
        ValueError: neither of the two.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZES:
        raise ValueError("must be a number of bytes, or a size such as 64MiB or 10MB")
    return int(float(match[1]) * _SIZES[match[2].lower()])


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]

_DURATION_SCHEMA = {"type": "string", "pattern": DURATION_PATTERN}
Duration = Annotated[
    float, BeforeValidator(_seconds), WithJsonSchema(_DURATION_SCHEMA, mode="validation")
]
WholeSeconds = Annotated[
    int,
    BeforeValidator(_whole_seconds),
    Field(ge=0, le=65535),
    WithJsonSchema(_DURATION_SCHEMA, mode="validation"),
]
ByteSize = Annotated[
    int,
    BeforeValidator(size_bytes),
    Field(ge=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": SIZE_PATTERN},
            ]
        },
        mode="validation",
    ),
]


# --------------------------------------------------------------------------- broker URLs

SCHEMES = ("embedded", "amqp", "amqps")
DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


class UrlParts(NamedTuple):
    """A broker URL, decoded once. For ``embedded``, `path` is the file, "" for memory."""

    scheme: str
    hostname: str = ""
    port: int | None = None
    user: str = ""
    password: str = ""
    vhost: str | None = None
    """None where the URL has no path: the key of the vhost names it then."""
    query: str = ""
    path: str = ""


def parse_url(url: str) -> UrlParts:
    """Take a broker URL apart, refusing raw special characters instead of guessing.

    Raises:
        ValueError: the text names the part at fault and never shows a part that may be secret.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        shown = f" {scheme!r}" if separator and scheme.isalnum() else ""
        raise ValueError(f"unknown URL scheme{shown}; allowed: embedded://, amqp://, amqps://")
    scheme = scheme.lower()
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("the URL holds white space or control characters; percent-encode them")
    if scheme == "embedded":
        return UrlParts(scheme, path=_decoded("file", rest))
    if "#" in rest:
        raise ValueError(
            "the URL holds a raw '#'; in a password or vhost write it percent-encoded, %23"
        )
    authority, userinfo, host = _authority(rest)
    user, _, password = userinfo.partition(":")
    try:
        split = urlsplit(f"{scheme}://{host}{rest[len(authority) :]}")
        hostname, port = split.hostname or "", split.port
    except ValueError:
        # The text of urlsplit quotes its input, which may hold the password.
        raise ValueError(
            "the host or port of the URL is malformed; a '/', '?', '#', '@' or ':' in user or "
            "password must be percent-encoded"
        ) from None
    if not hostname:
        raise ValueError("the URL names no host")
    return UrlParts(
        scheme,
        hostname,
        port or DEFAULT_PORTS[scheme],
        _decoded("user", user) if userinfo else "guest",
        _decoded("password", password) if userinfo else "guest",
        _vhost_of(split.path),
        split.query,
    )


def _authority(rest: str) -> tuple[str, str, str]:
    """(whole authority, userinfo, host with port) of what follows ``://``."""
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if "@" in rest[len(authority) :]:
        # Seen before '@', a '/' or '?' has cut the password, and its head looks like the host.
        raise ValueError(
            "the URL has an '@' behind its host: a raw '/' or '?' in user or password must be "
            "written %2F or %3F, and an '@' in a vhost %40"
        )
    if authority.count("@") > 1:
        raise ValueError("user or password of the URL holds a raw '@'; write it %40")
    userinfo, _, host = authority.rpartition("@")
    return authority, userinfo, host


def _vhost_of(path: str) -> str | None:
    if not path:
        return None
    if path == "/":
        return "/"
    if "/" in path[1:]:
        raise ValueError("the vhost of the URL holds a raw '/'; write it %2F")
    return _decoded("vhost", path[1:])


def _decoded(part: str, text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise ValueError(f"the {part} of the URL holds a raw '%'; write it %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"the {part} of the URL is not percent-encoded UTF-8") from None


def build_url(parts: UrlParts, *, masked: bool = False) -> str:
    """The URL of `parts`, every part encoded; with ``***`` for the password when `masked`."""
    if parts.scheme == "embedded":
        return f"embedded://{quote(parts.path)}"
    password = "***" if masked else quote(parts.password, safe="")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = ""
    if parts.vhost is not None:
        path = "/" if parts.vhost == "/" else "/" + quote(parts.vhost, safe="")
    query = f"?{_masked_query(parts.query) if masked else parts.query}" if parts.query else ""
    user = quote(parts.user, safe="")
    return f"{parts.scheme}://{user}:{password}@{host}:{parts.port}{path}{query}"


def _masked_query(query: str) -> str:
    return re.sub(r"(?i)([^&=]*(?:pass|secret|token|key)[^&=]*)=[^&]*", r"\1=***", query)


def masked(url: str) -> str:
    """`url` with its password hidden, and only its scheme when it cannot be read."""
    try:
        return build_url(parse_url(url), masked=True)
    except ValueError:
        return f"{url.partition('://')[0][:10]}://***" if "://" in url else "***"
