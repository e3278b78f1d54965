"""Imports go down the rows only, pure stays pure, and each outside library has one owner."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase

import pytest

from tests.architecture.source import FILES, MODULES, imported_modules, imported_names, tree

# Bottom first. A module imports from lower rows; within its row, from its own folder and along
# NEIGHBOURS. A folder stands for all in it.
ROWS: list[tuple[str, ...]] = [
    # ground
    ("errors", "clock", "message", "deadlines", "delivery_event"),
    ("tasks", "file_lock"),
    ("emitter", "stats", "health", "eventlog"),
    # settings
    ("config",),
    ("rascal",),
    ("retry",),
    # broker
    ("core", "amqp"),
    ("store",),  # keeps what the core appends, so it knows the core's records
    ("node",),
    ("server",),
    # client
    ("encryption", "management", "redeliveries"),
    ("deduplication",),
    ("transport",),
    ("connection", "delay", "connectors"),
    ("pool",),
    ("copies", "due", "loop_lag", "streams", "consuming"),
    ("publish_queue", "lane", "topology", "publication", "content", "ackornack"),
    ("outbox", "handlers", "pulling", "unsettled", "watchdog", "client_events"),
    ("inspection",),
    ("intake",),
    ("session",),
    ("subscription", "vhost"),
    ("routes", "requests"),
    ("publisher", "shovels"),
    ("broker",),
    # connectors
    ("spark",),
    # command
    ("cli",),
    ("__init__", "__main__"),
]

NEIGHBOURS = {
    ("publish_queue", "publication"),  # what the queue holds
    ("publish_queue", "lane"),
    ("lane", "publication"),
}
"""(importer, imported) pairs allowed within one row; everything else there goes by a Protocol."""

BROKER_SIDE = ("core", "store", "node", "server")
MEETING_POINTS = ("transport.embedded*", "cli*")
"""The only modules above the broker's rows that may import from them."""

PURE = ("core", "amqp")
PURE_MAY_USE = ("errors", "message", "deadlines", "delivery_event", "stats")
IMPURE = {"asyncio", "socket", "ssl", "time", "random", "os", "logging", "threading", "selectors"}

OWNERS = {
    "aio_pika": ("transport.network*",),
    "aiormq": ("transport.network*",),
    "yarl": ("transport.network*",),
    "pamqp": ("transport.network*", "amqp.codec*"),
    "tenacity": ("retry",),
    "yaml": ("config.loader", "config.tree"),
    "pydantic": ("config", "content", "handlers"),  # an application's models
    "pydantic_core": ("config", "content"),
    "typer": ("cli*",),
    "rich": ("cli*",),
    "sqlite3": ("store*", "redeliveries", "deduplication"),
    "cryptography": ("encryption",),
    "redis": ("redeliveries",),
    "pyspark": ("spark*",),
    "pyarrow": ("spark*",),
}
"""Outside library: the modules that may import it."""

FORBIDDEN = ("aio_pika.connect_robust", "aio_pika.robust_connection", "aio_pika.pool")
"""A second owner of reconnecting, or of channels."""


def within(module: str, patterns: tuple[str, ...]) -> bool:
    """True when `module` is, or lies in a folder that is, one of `patterns`."""
    parts = module.split(".")
    prefixes = [".".join(parts[: length + 1]) for length in range(len(parts))]
    return any(fnmatchcase(prefix, pattern) for pattern in patterns for prefix in prefixes)


def row_of(module: str) -> int:
    return next(number for number, row in enumerate(ROWS) if within(module, row))


def may_import(importer: str, imported: str) -> bool:
    here, there = row_of(importer), row_of(imported)
    if here != there:
        return there < here
    pair = (importer.split(".")[0], imported.split(".")[0])
    return pair[0] == pair[1] or pair in NEIGHBOURS


@pytest.mark.parametrize("module", MODULES)
def test_module_has_exactly_one_row(module: str) -> None:
    rows = [row for row in ROWS if within(module, row)]
    assert len(rows) == 1, f"{module}: give it a row in ROWS"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module: str) -> None:
    wrong = [name for name in sorted(imported_modules(module)) if not may_import(module, name)]
    assert not wrong, f"{module} imports {wrong}, from its own row or above"


@pytest.mark.parametrize("module", MODULES)
def test_no_relative_import(module: str) -> None:
    relative = [
        node.lineno
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative, f"{FILES[module]}: write imports in full, lines {relative}"


@pytest.mark.parametrize("module", MODULES)
def test_outside_library_has_one_owner(module: str) -> None:
    wrong = [
        name
        for name in imported_names(module)
        if (owners := OWNERS.get(name.split(".")[0])) is not None and not within(module, owners)
    ]
    assert not wrong, f"{module} imports {wrong}; see OWNERS"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_but_the_pool_owns_reconnecting(module: str) -> None:
    wrong = [name for name in imported_names(module) if name.startswith(FORBIDDEN)]
    wrong += [
        f"line {node.lineno}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr == "connect_robust"
    ]
    assert not wrong


@pytest.mark.parametrize("module", [m for m in MODULES if within(m, PURE)])
def test_pure_module_touches_no_world(module: str) -> None:
    outside = {name.split(".")[0] for name in imported_names(module)}
    assert not outside & IMPURE
    here = (module.split(".")[0],)
    wrong = [n for n in imported_modules(module) if not within(n, PURE_MAY_USE + here)]
    assert not wrong, f"{module} imports {wrong}, which is not pure"


@pytest.mark.parametrize("module", [m for m in MODULES if row_of(m) > row_of("server")])
def test_client_meets_broker_in_the_embedded_transport_only(module: str) -> None:
    if not within(module, MEETING_POINTS):
        assert not [name for name in imported_modules(module) if within(name, BROKER_SIDE)]


@pytest.mark.parametrize("module", [m for m in MODULES if not within(m, ("spark",))])
def test_nothing_imports_the_spark_connector(module: str) -> None:
    assert not [name for name in imported_modules(module) if within(name, ("spark",))]


def test_no_import_cycle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(imported_modules(module)):
                visit(target, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
