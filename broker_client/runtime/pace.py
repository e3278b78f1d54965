"""Long answers in short steps, since a broker may share the event loop with HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sized
from typing import Any, TypeVar

T = TypeVar("T")

_STEP = 0.002  # seconds for which one step may hold the event loop
_ITEMS = 20  # of a list encoded between two looks at the clock
_FEW = 50  # items that are not worth a turn of the event loop before them
_SPACE = re.compile(r"[ \t\n\r]*")


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """`items`, yielding to the event loop from time to time.

    What they are made of may change meanwhile, so `items` must not be a view of it. Many begin
    with a turn of the event loop: what was done before them may have taken a step's time.
    """
    if isinstance(items, Sized) and len(items) > _FEW:
        await asyncio.sleep(0)
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
    await asyncio.sleep(0)
    pieces = [_encoded(step)[1:-1] async for step in paced(steps)]
    return b"[" + b",".join(pieces) + b"]"


async def from_json(text: str, refuse_constant: Callable[[str], Any] | None = None) -> Any:
    """What `text` is the JSON of; a long list, or one in an object, is decoded in steps.

    Args:
        text: JSON.
        refuse_constant: called for NaN and Infinity, which are not JSON.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    decoder = json.JSONDecoder(parse_constant=refuse_constant)
    at = _behind_space(text, 0)
    if text.startswith("{", at):
        value, at = await _object(text, at, decoder)
    else:
        value, at = await _value(text, at, decoder)
    if _behind_space(text, at) != len(text):
        raise ValueError("there is more behind the value")
    return value


async def _object(text: str, at: int, decoder: json.JSONDecoder) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _behind_space(text, at + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        if not text.startswith('"', at):
            raise ValueError("a member of an object has no name")
        name, at = decoder.raw_decode(text, at)
        at = _behind_space(text, at)
        if not text.startswith(":", at):
            raise ValueError("a member of an object has no value")
        members[name], at = await _value(text, _behind_space(text, at + 1), decoder)
        at, is_last = _behind_comma(text, at, "}")
        if is_last:
            return members, at


async def _value(text: str, at: int, decoder: json.JSONDecoder) -> tuple[Any, int]:
    """A value that begins at `at`, and where it ends; the items of a list are taken in steps."""
    if not text.startswith("[", at):
        return decoder.raw_decode(text, at)
    items: list[Any] = []
    at = _behind_space(text, at + 1)
    if text.startswith("]", at):
        return items, at + 1
    began = time.monotonic()
    while True:
        item, at = decoder.raw_decode(text, at)
        items.append(item)
        at, is_last = _behind_comma(text, at, "]")
        if is_last:
            return items, at
        if time.monotonic() - began > _STEP:
            await asyncio.sleep(0)
            began = time.monotonic()


def _behind_comma(text: str, at: int, closing: str) -> tuple[int, bool]:
    """Where what follows begins, and whether `closing` came instead of a comma."""
    at = _behind_space(text, at)
    if text.startswith(closing, at):
        return at + 1, True
    if not text.startswith(",", at):
        raise ValueError(f"neither a comma nor {closing} follows a value")
    return _behind_space(text, at + 1), False


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _encoded(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
