"""The fragments of docs/guide.md run, in order, and print what the guide shows."""

from __future__ import annotations

import ast
import contextlib
import io
import types
from typing import Any

import pytest
import yaml

from broker_client import Broker
from broker_client.config.loader import load_config
from tests.docs.documents import ROOT, Block, blocks, python_blocks, read

GUIDE = "docs/guide.md"


async def run(block: Block, namespace: dict[str, Any]) -> str:
    """Run one fragment as the body of an ``async def``; returns what it printed."""
    # Blank lines in front, so that a traceback names the line of the guide.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, GUIDE, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = types.FunctionType(code, namespace)()
        if result is not None:
            await result
    return printed.getvalue()


async def test_fragments_print_what_the_guide_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    async with Broker.create("config/embedded.yaml") as broker:
        namespace: dict[str, Any] = {"broker": broker}
        for block in python_blocks(GUIDE):
            assert await run(block, namespace) == (block.output or ""), f"line {block.line}"


def test_first_yaml_of_the_guide_is_the_file_its_fragments_run_on() -> None:
    shown = next(block for block in blocks(GUIDE) if block.language == "yaml")
    assert "config/embedded.yaml" in read(GUIDE)
    assert load_config(yaml.safe_load(shown.text)) == load_config(ROOT / "config" / "embedded.yaml")
