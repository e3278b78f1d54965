"""All names that ``from broker_client import ...`` offers are documented."""

from __future__ import annotations

import ast
import importlib

from tests.architecture.source import tree


def places() -> dict[str, str]:
    """The names that type checkers see imported, and the modules they are imported from."""
    return {
        alias.name: (node.module or "").removeprefix("broker_client.")
        for block in tree("__init__").body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_lists_exactly_what_is_imported() -> None:
    package = importlib.import_module("broker_client")
    listed: list[str] = list(package.__all__)
    assert len(listed) == len(set(listed)), "a name is listed twice"
    assert set(listed) == set(places())


def test_names_are_found_where_type_checkers_see_them() -> None:
    package = importlib.import_module("broker_client")
    for name, module in places().items():
        there = importlib.import_module(f"broker_client.{module}")
        assert getattr(package, name) is getattr(there, name)


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


def test_unknown_name_is_no_attribute() -> None:
    package = importlib.import_module("broker_client")
    assert not hasattr(package, "Borker")
    assert not hasattr(package, "_Borker")


def test_module_is_found_without_an_import_of_its_own() -> None:
    package = importlib.import_module("broker_client")
    assert package.errors.BrokerClientError is package.BrokerClientError
    assert set(package.__all__) <= set(dir(package))
