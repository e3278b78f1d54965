"""The map from the rows of the parity tables to tests leads somewhere."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = tomllib.loads(Path(__file__).with_name("core.toml").read_text(encoding="utf-8"))


@cache
def functions_in(file: str) -> frozenset[str]:
    functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    return frozenset(
        node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("row", MAP["tests"])
def test_every_row_names_tests_that_are_there(row: str) -> None:
    tests: list[str] = MAP["tests"][row]
    assert tests
    for test in tests:
        file, name = test.split("::")
        assert name in functions_in(file), (
            f"{row}: {test} is gone; name the test that took its place"
        )


def test_no_row_is_both_held_and_without_meaning() -> None:
    assert not MAP["tests"].keys() & MAP["elsewhere"].keys()


def test_rows_without_meaning_here_have_a_reason() -> None:
    assert all(len(reason) > 5 for reason in MAP["elsewhere"].values())
