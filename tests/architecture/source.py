"""The package as its import statements show it, without importing any of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "broker_client"


def _dotted(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


FILES = {_dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
"""Module name within the package, such as ``transport.base``, to its file."""

MODULES = list(FILES)


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def imported_names(module: str) -> tuple[str, ...]:
    """Dotted names that `module` imports, blocks for type checkers and functions included."""
    return tuple(_imported(tree(module)))


def _imported(code: ast.Module) -> Iterator[str]:
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imported_modules(module: str) -> frozenset[str]:
    """Modules of the package that `module` imports."""
    found = set()
    for name in imported_names(module):
        first, *rest = name.split(".")
        if first == PACKAGE.name:
            # The longest prefix that is a module; what follows is a name inside it.
            prefixes = (".".join(rest[:length]) for length in range(len(rest), 0, -1))
            found.add(next((prefix for prefix in prefixes if prefix in FILES), "__init__"))
    return frozenset(found - {module})
