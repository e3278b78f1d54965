"""The body of an HTTP request, of which no more is read than is allowed."""

from __future__ import annotations

from collections.abc import AsyncIterable


async def read_limited(stream: AsyncIterable[bytes], declared: str, most: int) -> bytes | None:
    """The body that `stream` brings, or None where it is longer than `most`.

    Args:
        stream: of its pieces; not begun where `declared` is too much already.
        declared: the header Content-Length, or "".
        most: bytes.
    """
    # Longer numbers are refused by the HTTP server; int() of very long ones is slow.
    digits = declared.lstrip("0")
    if digits.isdecimal() and (len(digits) > len(str(most)) or int(digits) > most):
        return None
    pieces: list[bytes] = []
    size = 0
    async for piece in stream:
        size += len(piece)
        if size > most:
            return None
        pieces.append(piece)
    return b"".join(pieces)
