"""Codecs that an application registers for content types other than text and JSON.

Text, JSON and types that end in ``+json`` are built in. Bodies of other unregistered types stay
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_client.errors import UnsupportedError, install_extra
from broker_client.runtime.slotted import slotted

_codecs: dict[str, Codec] = {}


@slotted
class Codec:
    """Encodes and decodes the contents of one content type.

    Either function may raise anything: a publish raises `InvalidContentError` then, and a
    subscription emits `invalid_content`.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def register_codec(content_type: str, codec: Codec) -> None:
    """Use `codec` for messages of `content_type`, in this process.

    Publications with this `options.content_type` use it to encode contents other than bytes, if it
    is registered when their Broker is created. Subscriptions use it to decode.

    Args:
        content_type: without parameters, such as ``application/msgpack``.
        codec: replaces a codec registered before.

    Raises:
        ValueError: it has parameters, or is built in.
    """
    kind = content_type.strip().lower()
    if ";" in kind or "/" not in kind:
        raise ValueError(f"{content_type!r} is not a content type without parameters")
    if kind in ("text/plain", "application/json") or kind.endswith("+json"):
        raise ValueError(f"{content_type!r} is built in")
    _codecs[kind] = codec
    for forget in _caches:
        forget()


def codec_of(content_type: str | None) -> Codec | None:
    """The codec that is registered for a content type, with or without parameters."""
    if content_type is None:
        return None
    return _codecs.get(content_type.partition(";")[0].strip().lower())


def msgpack_codec() -> Codec:
    """MessagePack, with times as its own type.

    Raises:
        UnsupportedError: the extra ``msgpack`` is not installed.
    """
    try:
        import msgpack
    except ImportError:
        raise UnsupportedError("MessagePack", install_extra("msgpack")) from None
    return Codec(
        lambda content: bytes(msgpack.packb(content, datetime=True)),
        lambda body: msgpack.unpackb(body, timestamp=3),
    )


def protobuf_codec(message_class: Any) -> Codec:
    """Protocol Buffers of one class, as ``protoc`` makes it."""
    return Codec(lambda content: bytes(content.SerializeToString()), message_class.FromString)


_caches: list[Callable[[], None]] = []


def forgets(cache: Callable[[], None]) -> None:
    """Have `cache` called whenever what is registered changes."""
    _caches.append(cache)
