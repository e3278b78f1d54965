"""The maps from rows of the parity tables to tests lead somewhere; docs/parity.md shows them."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.parity.document import DOCUMENT, maps, text

ROOT = Path(__file__).parents[2]
MAPS = dict(maps())
HELD = [(title, row) for title, rows in MAPS.items() for row in rows["tests"]]


@cache
def functions_in(file: str) -> frozenset[str]:
    functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    return frozenset(
        node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(("title", "row"), HELD)
def test_every_row_names_tests_that_are_there(title: str, row: str) -> None:
    tests = MAPS[title]["tests"][row]
    assert tests
    for test in tests:
        file, name = test.split("::")
        assert name in functions_in(file), (
            f"{row}: {test} is gone; name the test that took its place"
        )


@pytest.mark.parametrize("title", MAPS)
def test_no_row_is_both_held_and_without_meaning(title: str) -> None:
    assert not MAPS[title]["tests"].keys() & MAPS[title].get("elsewhere", {}).keys()


def test_no_row_is_left_out_and_none_is_made_up() -> None:
    """`rows.txt` lists every row of the comparisons that this version answers for."""
    wanted = set((ROOT / "tests" / "parity" / "rows.txt").read_text(encoding="utf-8").split())
    named = {row for rows in MAPS.values() for part in rows.values() for row in part}
    assert named == wanted


def test_every_row_stands_in_one_map_only() -> None:
    named = [row for rows in MAPS.values() for part in rows.values() for row in part]
    assert [row for row, count in Counter(named).items() if count > 1] == []


@pytest.mark.parametrize("title", MAPS)
def test_rows_without_meaning_here_have_a_reason(title: str) -> None:
    assert all(len(reason) > 5 for reason in MAPS[title].get("elsewhere", {}).values())


def test_document_is_what_the_maps_say() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == text(), "run: python -m tests.parity.document"
