"""Addresses: of brokers, of nodes in this process, and of management APIs."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

SCHEMES = ("embedded", "amqp", "amqps")
DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
MANAGEMENT_PORTS = {"http": 15672, "https": 15671}


class UrlParts(NamedTuple):
    """A URL, decoded once.

    For ``embedded``, `path` is the file of the node, "" where it keeps everything in memory, and
    `hostname` the name of a node in memory, "" for a private one. For ``http`` and ``https``,
    `path` is what stands in front of ``/api``.
    """

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
    scheme, rest = _scheme_and_rest(url, SCHEMES)
    if scheme == "embedded":
        return _embedded(rest)
    parts, path = _network(scheme, rest)
    return parts._replace(port=parts.port or DEFAULT_PORTS[scheme], vhost=_vhost_of(path))


def parse_management_url(url: str) -> UrlParts:
    """Take the URL of a management API apart; user and password are "" where it has none.

    Raises:
        ValueError: as for `parse_url`.
    """
    scheme, rest = _scheme_and_rest(url, tuple(MANAGEMENT_PORTS))
    parts, path = _network(scheme, rest)
    if parts.query:
        raise ValueError("the URL of a management API must not have a query")
    return parts._replace(port=parts.port or MANAGEMENT_PORTS[scheme], path=path.rstrip("/"))


def _scheme_and_rest(url: str, schemes: tuple[str, ...]) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in schemes:
        shown = f" {scheme!r}" if separator and scheme.isalnum() else ""
        allowed = ", ".join(f"{each}://" for each in schemes)
        raise ValueError(f"unknown URL scheme{shown}; allowed: {allowed}")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("the URL holds white space or control characters; percent-encode them")
    return scheme.lower(), rest


def _embedded(rest: str) -> UrlParts:
    if "?" in rest or "#" in rest:
        raise ValueError(
            "an embedded:// address has no options; write a '?' of a file name %3F, a '#' %23"
        )
    if "/" in rest:
        return UrlParts("embedded", path=_decoded("file", rest))
    if "@" in rest or ":" in rest:
        raise ValueError(
            "embedded://NAME is a node in this process, without user or port; the path of a file "
            "has a '/': embedded:///var/lib/app.db or embedded://./app.db"
        )
    return UrlParts("embedded", _decoded("name", rest))


def _network(scheme: str, rest: str) -> tuple[UrlParts, str]:
    """The parts of what follows ``scheme://``, but for its path, and the path as written."""
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
        raise ValueError("the URL has no host")
    nobody = "guest" if scheme in DEFAULT_PORTS else ""
    parts = UrlParts(
        scheme,
        hostname,
        port,
        _decoded("user", user) if userinfo else nobody,
        _decoded("password", password) if userinfo else nobody,
        query=split.query,
    )
    return parts, split.path


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
    """The URL of `parts` but for the query, every part encoded; ``***`` for the password when
    `masked`."""
    if parts.scheme == "embedded":
        return f"embedded://{quote(parts.hostname, safe='') or quote(parts.path)}"
    password = "***" if masked else quote(parts.password, safe="")
    bare = parts.hostname.removeprefix("[").removesuffix("]")
    host = f"[{bare}]" if ":" in bare else bare  # RFC 3986 §3.2.2: IPv6
    path = parts.path
    if parts.vhost is not None:
        path = "/" if parts.vhost == "/" else "/" + quote(parts.vhost, safe="")
    user = quote(parts.user, safe="")
    return f"{parts.scheme}://{user}:{password}@{host}:{parts.port}{path}"


def masked(url: str) -> str:
    """`url` with its password hidden, and only its scheme when it cannot be read."""
    try:
        return build_url(parse_url(url), masked=True)
    except ValueError:
        return f"{url.partition('://')[0][:10]}://***" if "://" in url else "***"
