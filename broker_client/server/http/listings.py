"""Lists as a caller wants them: filtered, sorted, in pages, with some columns only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_client.core.access_pattern import AccessPattern
from broker_client.errors import UsageError
from broker_client.runtime.pace import paced
from broker_client.server.http.calls import number
from broker_client.server.http.errors import bad_request

_MAX_PAGE_SIZE = 500

Item = Mapping[str, Any]


async def listed(items: Sequence[Item], query: Mapping[str, str]) -> Any:
    """`items` as the query asks for: a list, or with `page` an object that holds one page.

    Args:
        items: all that the caller may see.
        query: `page`, `page_size`, `name`, `use_regex`, `sort`, `sort_reverse`, `columns`.

    Raises:
        Refusal: 400 for a page that is none.
    """
    found = _filtered(items, query)
    if column := query.get("sort"):
        found = sorted(found, key=lambda item: _rank(_at(item, column)))
        if query.get("sort_reverse") == "true":
            found.reverse()
    columns = _columns(query)
    if "page" not in query and "page_size" not in query:
        return [with_columns(item, columns) async for item in paced(found)]
    page, size = number(query, "page", 1), number(query, "page_size", 100)
    if not 1 <= size <= _MAX_PAGE_SIZE:
        raise bad_request(f"page_size is 1 to {_MAX_PAGE_SIZE}")
    pages = max(1, -(-len(found) // size))
    if not 1 <= page <= pages:
        raise bad_request(f"page out of range, page: {page} page size: {size}, len: {len(found)}")
    shown = found[(page - 1) * size : page * size]
    return {
        "items": [with_columns(item, columns) for item in shown],
        "item_count": len(shown),
        "filtered_count": len(found),
        "total_count": len(items),
        "page": page,
        "page_count": pages,
        "page_size": size,
    }


def shown(item: Item, query: Mapping[str, str]) -> Item:
    """One object with the columns that the query asks for."""
    return with_columns(item, _columns(query))


Columns = dict[str, Any]
"""Keys that are kept, each with those that are kept of the object in it; None for all of them."""


def with_columns(item: Item, columns: Columns) -> Item:
    """`item` with some columns only; `a.b` is the column `b` of the object in `a`."""
    if not columns:
        return item
    kept: dict[str, Any] = {}
    for column, inner in columns.items():
        if column not in item:
            continue
        value = item[column]
        if inner is None:
            kept[column] = value
        elif isinstance(value, dict) and (part := with_columns(value, inner)):
            kept[column] = part
    return kept


_MISSING: Any = object()


def _columns(query: Mapping[str, str]) -> Columns:
    columns: Columns = {}
    for column in query.get("columns", "").split(","):
        *path, last = column.split(".")
        target: Columns | None = columns
        for part in path:
            target = None if target is None else target.setdefault(part, {})
        if last and target is not None:
            target[last] = None  # all of it, whatever else was asked for
    return columns


def _at(item: Any, column: str) -> Any:
    for part in column.split("."):
        if not isinstance(item, Mapping) or part not in item:
            return _MISSING
        item = item[part]
    return item


def _rank(value: Any) -> tuple[int, Any]:
    """A key that sorts values of any type: missing ones, then numbers, then text."""
    if value is _MISSING or value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return 2, str(value)


def _filtered(items: Sequence[Item], query: Mapping[str, str]) -> list[Item]:
    name = query.get("name", "")
    if not name:
        return list(items)
    if query.get("use_regex") != "true":
        wanted = name.lower()
        return [item for item in items if wanted in str(item.get("name", "")).lower()]
    pattern = AccessPattern(f"(?i){name}")  # its time is bounded
    try:
        pattern.check()
    except UsageError as error:
        raise bad_request(str(error)) from None
    return [item for item in items if pattern.matches(str(item.get("name", "")))]
