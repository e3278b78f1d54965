"""Long answers in short steps: a broker may share its event loop with what serves HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

_STEP = 0.003  # seconds for which one step may hold the event loop
_ITEMS = 50  # of a list encoded in one step


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """`items`, between which others get the event loop now and then.

    What they are made of may change meanwhile, so `items` must not be a view of it.
    """
    began = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - began > _STEP:
            await asyncio.sleep(0)
            began = time.monotonic()


async def as_json(value: Any) -> bytes:
    """`value` as JSON; a long list, or one in an object, is encoded in steps."""
    if isinstance(value, dict):
        members = [_encoded(key) + b":" + await as_json(item) for key, item in value.items()]
        return b"{" + b",".join(members) + b"}"
    if not isinstance(value, list) or len(value) <= _ITEMS:
        return _encoded(value)
    steps = [value[at : at + _ITEMS] for at in range(0, len(value), _ITEMS)]
    pieces = [_encoded(step)[1:-1] async for step in paced(steps)]
    return b"[" + b",".join(pieces) + b"]"


def _encoded(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
