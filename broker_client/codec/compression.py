"""Bodies compressed and decompressed by their content encoding."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Literal

from broker_client.errors import InvalidContentError, UnsupportedError, install_extra

Compression = Literal["gzip", "zstd"]

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_STEP = 256
"""Bytes given to zstd at a time: 64 blocks at most, so 8 MiB may come beyond the limit (RFC 8878
§3.1.1.2: a block is at least 4 bytes here, and makes 128 KiB at most)."""
_WINDOW = 128 * 1024 * 1024


def check_available(compression: str) -> None:
    """Make sure that `compression` can be done.

    Raises:
        UnsupportedError: its package is not installed.
    """
    if compression == "zstd":
        _zstandard()


def compress(body: bytes, compression: Compression) -> bytes:
    if compression == "gzip":
        return gzip.compress(body, compresslevel=6, mtime=0)
    compressed: bytes = _zstandard().ZstdCompressor().compress(body)
    return compressed


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` as it was before it got the content encoding `encoding`.

    Args:
        body: compressed.
        encoding: ``gzip``, ``deflate`` or ``zstd``; with any other, `body` is returned.
        limit: most bytes to make.

    Raises:
        InvalidContentError: it is damaged, cut off, or larger than `limit`.
        UnsupportedError: the package for `encoding` is not installed.
    """
    encoding = encoding.strip().lower()
    try:
        if encoding in ("gzip", "x-gzip", "deflate"):
            return _inflated(body, limit)
        if encoding == "zstd":
            return _zstd(body, limit)
    except (ValueError, zlib.error) as error:
        raise InvalidContentError(encoding, str(error)) from None
    return body


def _inflated(body: bytes, limit: int) -> bytes:
    made = bytearray()
    while body:  # RFC 1952 §2.2: members may follow each other
        stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        made += stream.decompress(body, limit + 1 - len(made))
        if len(made) > limit:
            raise _too_large(limit)
        if not stream.eof:
            raise ValueError("it is cut off")
        body = stream.unused_data
    return bytes(made)


def _zstd(body: bytes, limit: int) -> bytes:
    library = _zstandard()
    made = bytearray()
    at = 0
    while at < len(body):  # RFC 8878 §3.1: frames may follow each other
        stream = library.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        while not stream.eof:
            if at >= len(body):
                raise ValueError("it is cut off")
            piece = body[at : at + _STEP]
            at += len(piece)
            try:
                made += stream.decompress(piece)
            except library.ZstdError as error:
                raise ValueError(str(error)) from None
            if len(made) > limit:
                raise _too_large(limit)
        at -= len(stream.unused_data)
    return bytes(made)


def _too_large(limit: int) -> ValueError:
    return ValueError(f"it is larger than {limit:,} bytes decompressed (decompress)")


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise UnsupportedError("zstd", install_extra("zstd")) from None
    return zstandard
