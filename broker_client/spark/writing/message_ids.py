"""Message ids that come out the same when Spark runs a task or a batch again.

A *scope* tells one write from another: query and batch, or one ``save()``. Within it:

* content ids are a hash of the message and the number of its occurrence. They do not depend on
  the order of rows, which is not the same from one attempt to the next behind a shuffle
  (SPARK-23207, SPARK-23243).
* position ids are the row's number. Behind a shuffle a retry may give the id of one row to
  another, and a broker that deduplicates then drops a message it never had.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Protocol

_DIGEST_BYTES = 16


class MessageIds(Protocol):
    """Names the messages of one partition, in the order they are given."""

    def next(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None, body: bytes
    ) -> str: ...


def streaming_scope(query_id: str, batch_id: str) -> str:
    """The scope of one batch of a streaming query; both parts survive a restart."""
    return f"{query_id}/{batch_id}"


class ContentIds:
    """Hash of the message, and how many times it occurred before in this partition.

    Args:
        scope: of the write.
        partition: of the rows; equal rows of two partitions get different ids.
        publication: what is published through, when it has a name.
    """

    def __init__(self, scope: str, partition: int | str, publication: str = "") -> None:
        self._start = hashlib.blake2b(
            _fields(scope.encode(), str(partition).encode(), publication.encode()),
            digest_size=_DIGEST_BYTES,
        )
        self._seen: dict[str, int] = {}
        self._way: tuple[str, str] | None = None
        self._on_the_way = self._start  # hashed as far as the exchange and key of the last row

    def next(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None, body: bytes
    ) -> str:
        """The id of the next message."""
        if self._way != (exchange, routing_key):
            self._way = exchange, routing_key
            self._on_the_way = self._start.copy()
            self._on_the_way.update(_fields(exchange.encode(), routing_key.encode()))
        hasher = self._on_the_way.copy()
        hasher.update(_fields(_canonical(headers), body) if headers else _no_headers(body))
        digest = hasher.hexdigest()
        occurrence = self._seen.get(digest, 0)
        self._seen[digest] = occurrence + 1
        return f"{digest}-{occurrence}"


class PositionIds:
    """The number of the row in its partition. Only for plans whose row order is fixed."""

    def __init__(self, scope: str, partition: int | str) -> None:
        self._prefix = f"{scope}-{partition}-"
        self._row = -1

    def next(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any] | None, body: bytes
    ) -> str:
        """The id of the next message."""
        self._row += 1
        return f"{self._prefix}{self._row}"


def _fields(*fields: bytes) -> bytes:
    """`fields` with their lengths, so that no two lists of fields give the same bytes."""
    return b"".join([struct.pack(">I", len(field)) + field for field in fields])


def _no_headers(body: bytes) -> bytes:
    """What `_fields` makes of no headers and `body`."""
    return b"\0\0\0\0" + len(body).to_bytes(4, "big") + body


def _canonical(headers: Mapping[str, Any]) -> bytes:
    return repr(sorted((key, _plain(value)) for key, value in headers.items())).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((key, _plain(item)) for key, item in value.items())
    return value
