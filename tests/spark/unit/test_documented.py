"""docs/spark.md documents all options and errors."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from broker_client.spark import errors
from broker_client.spark.options import CommonOptions, SinkOptions, SourceOptions, names

TEXT = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}s"
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value // 2**20}MiB" if value < 2**30 else f"{value // 2**30}GiB"
    return str(value)


def row(field: dataclasses.Field[Any]) -> str:
    return f"| `{field.metadata['name']}` | {shown(field.default)} | {field.metadata['doc']} |"


@pytest.mark.parametrize("kind", [CommonOptions, SourceOptions, SinkOptions])
def test_every_option_stands_in_a_table_with_its_default(kind: type[CommonOptions]) -> None:
    missing = [row(field) for field in names(kind).values() if row(field) not in TEXT]
    assert missing == []


def test_every_option_in_a_table_exists() -> None:
    known = {*names(SourceOptions), *names(SinkOptions)}
    tables = re.findall(r"\| Option \|.*?\n\n", TEXT, re.DOTALL)
    assert len(tables) == 3
    found = {name for table in tables for name in re.findall(r"^\| `(\w+)`", table, re.MULTILINE)}
    assert found == known


def test_every_error_is_explained() -> None:
    bases = {"SparkConnectorError", "SpoolError"}
    kinds = {
        name
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, errors.SparkConnectorError)
    }
    assert [name for name in sorted(kinds - bases) if f"`{name}`" not in TEXT] == []
