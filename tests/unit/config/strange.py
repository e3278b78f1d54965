"""Values that belong nowhere, and the places of a document to put them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

STRANGE: list[Any] = [None, -1, 2.5, "", "x", "a -> b", [], {}, [None], [[]], {"name": []}, True]


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within `value`."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))
