"""All names that ``from broker_client import ...`` offers are documented."""

from __future__ import annotations

import ast
import importlib

from tests.architecture.source import tree


def imported_here() -> list[str]:
    return [
        alias.asname or alias.name
        for node in tree("__init__").body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    ]


def test_all_lists_exactly_what_is_imported() -> None:
    package = importlib.import_module("broker_client")
    listed: list[str] = list(package.__all__)
    assert len(listed) == len(set(listed)), "a name is listed twice"
    public = {name for name in imported_here() if not name.startswith("_")}
    assert {name for name in listed if not name.startswith("__")} == public


def test_all_is_sorted() -> None:
    def order(name: str) -> tuple[int, str]:
        """Constants, classes, functions: as ruff's RUF022 has it."""
        kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
        return kind, name

    listed: list[str] = list(importlib.import_module("broker_client").__all__)
    assert listed == sorted(listed, key=order)


def test_every_listed_name_is_there() -> None:
    package = importlib.import_module("broker_client")
    missing = [name for name in package.__all__ if not hasattr(package, name)]
    assert not missing
