"""The project's documents: their text and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str
    line: int
    output: str | None
    """The block of kind `text` directly after a Python block."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    """The fenced blocks of the document `name`, in order."""
    text = read(name)
    found = list(_FENCE.finditer(text))
    made = []
    for match, following in zip(found, [*found[1:], None], strict=True):
        output = None
        if (
            match[1] == "python"
            and following is not None
            and following[1] == "text"
            and not text[match.end() : following.start()].strip()
        ):
            output = following[2]
        line = text.count("\n", 0, match.start()) + 2
        made.append(Block(match[1], match[2], line, output))
    return made


def python_blocks(name: str) -> list[Block]:
    return [block for block in blocks(name) if block.language == "python"]
