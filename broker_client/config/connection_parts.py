"""Brings the URL of a connection and the keys beside it into agreement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import (
    SecretStr,
)

from broker_client.config.access import (
    TlsConfig,
)
from broker_client.config.url import DEFAULT_PORTS, UrlParts, build_url, parse_url
from broker_client.config.url_query import connection_keys
from broker_client.config.values import (
    duration_seconds,
)

LOGIN: tuple[str, ...] = ("hostname", "user", "password")
_PARTS = ("scheme", "hostname", "port", "user", "password")
SOURCES: dict[str, tuple[str, ...]] = {
    "user_file": ("user",),
    "password_file": ("password",),
    "credentials": ("user", "password"),
}
"""Keys that say where credentials are found, and the keys that they stand for."""


def revealed(value: object) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def with_source_of_credentials(given: dict[str, Any], written: Mapping[str, Any]) -> Any:
    """`given` without the credentials that are found later; they must not be stated as well."""
    sources = [key for key in SOURCES if given.get(key) is not None]
    changing = any("password" in SOURCES[key] for key in sources)
    if given.get("refresh_credentials") is not None and not changing:
        raise ValueError("refresh_credentials needs password_file or credentials to read again")
    if not sources:
        return given
    if given.get("scheme") == "embedded":
        raise ValueError(f"{sources[0]} belongs to an amqp:// or amqps:// address")
    if "credentials" in sources and len(sources) > 1:
        raise ValueError(f"credentials and {sources[0]} contradict each other; give one of the two")
    url = revealed(written.get("url"))
    in_url = parse_url(url) if isinstance(url, str) else UrlParts("amqp", user="guest")
    for source in sources:
        for key in SOURCES[source]:
            stated = written.get(key) is not None
            if stated or getattr(in_url, key) not in ("", "guest"):
                raise ValueError(f"{source} and {key} contradict each other; give one of the two")
            given[key] = ""
    if isinstance(given.get("url"), str):
        parts = parse_url(given["url"])
        parts = parts._replace(user=given.get("user", parts.user))
        given["url"] = build_url(parts._replace(password=given.get("password", parts.password)))
    return given


def with_url(given: dict[str, Any]) -> dict[str, Any]:
    """`given` without `url`: built from the parts, or the built-in broker when none is there."""
    parts = {key: revealed(given[key]) for key in (*_PARTS, "vhost") if key in given}
    if not parts.keys() - {"vhost"}:
        nobody = {"hostname": "", "user": "", "password": ""}
        return {**given, **nobody, "url": "embedded://", "scheme": "embedded"}
    scheme = parts.get("scheme", "amqp")
    if not all(isinstance(value, str) for key, value in parts.items() if key != "port"):
        return given
    if scheme == "embedded":
        name = parts.get("hostname", "")
        nobody = {"hostname": name, "user": "", "password": ""}
        return {**given, **nobody, "url": build_url(UrlParts(scheme, name))}
    if scheme not in DEFAULT_PORTS:
        return given
    port = parts.get("port", DEFAULT_PORTS[scheme])
    if not str(port).isdecimal():
        return given
    url = build_url(
        UrlParts(
            scheme,
            parts.get("hostname", "localhost"),
            int(port),
            parts.get("user", "guest"),
            parts.get("password", "guest"),
            parts.get("vhost"),
        )
    )
    return {**given, "url": url, "port": port}


def _add_options(target: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Add what the query of a URL says; what is stated beside it must not contradict."""
    for key, found in options.items():
        stated = target.get(key)
        if isinstance(stated, TlsConfig):
            stated = stated.model_dump(exclude_unset=True)
        if isinstance(found, Mapping) and isinstance(stated, Mapping):
            target[key] = section = dict(stated)
            _add_options(section, found)
        elif stated is None:
            target[key] = found
        elif not _is_same(stated, found):
            raise ValueError(f"url and {key} contradict each other; give one of the two")


def _is_same(stated: object, found: object) -> bool:
    if str(stated) == str(found):
        return True
    try:
        return duration_seconds(stated) == duration_seconds(found)
    except ValueError:
        return False


def with_parts(given: dict[str, Any], parts: UrlParts) -> dict[str, Any]:
    """`given` with the parts of its `url`; a part given beside it must not contradict."""
    _add_options(given, connection_keys(parts.query, parts.scheme))
    parts = parts._replace(query="")
    for key in (*_PARTS, "vhost"):
        found = getattr(parts, key)
        stated = revealed(given.get(key))
        if stated is None or (key == "vhost" and found is None):
            continue
        if str(stated) != str(found):
            raise ValueError(f"url and {key} contradict each other; give one of the two")
    given |= {key: getattr(parts, key) for key in _PARTS}
    if parts.vhost is not None:
        given["vhost"] = parts.vhost
    given["url"] = build_url(parts)
    return given
