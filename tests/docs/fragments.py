"""Runs a document's fragments of Python, one after the other, in one namespace."""

from __future__ import annotations

import ast
import contextlib
import io
import types
from typing import Any

from tests.docs.documents import Block, python_blocks


async def check_fragments(document: str, namespace: dict[str, Any]) -> None:
    """Run each Python block of `document` as the body of an ``async def``; it must print what the
    document shows below it."""
    for block in python_blocks(document):
        printed = await run(block, namespace, document)
        assert printed == (block.output or ""), f"{document}, line {block.line}"


async def run(block: Block, namespace: dict[str, Any], document: str = "document") -> str:
    """Run one fragment; returns what it printed."""
    # Blank lines in front, so that a traceback names the line of the document.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, document, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = types.FunctionType(code, namespace)()
        if result is not None:
            await result
    return printed.getvalue()
