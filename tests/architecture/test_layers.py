"""Imports follow the arrows between rooms, pure rooms are pure, each outside library has one
owner."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter

import pytest

from tests.architecture.source import (
    FILES,
    MODULES,
    PACKAGE,
    imported_modules,
    imported_names,
    tree,
)

ROOMS = {
    "errors": "ground",
    "message": "ground",
    "runtime": "ground",
    "events": "ground",
    "pool": "connection",
    "publication": "publishing",
    "subscription": "consuming",
    "ackornack": "consuming",
    "router": "routing",
    "log_context": "telemetry",
    "tracing": "telemetry",
}
"""Modules at the top, and folders, that belong to a room of another name."""

ARROWS = {
    "ground": (),
    "config": ("ground",),
    "amqp": ("ground",),
    "codec": ("config", "ground"),
    "core": ("amqp", "ground"),
    "store": ("core", "amqp", "ground"),
    "node": ("store", "core", "config", "ground"),
    "server": ("moving", "transport", "node", "core", "amqp", "config", "ground"),
    "dashboard": ("moving", "transport", "core", "amqp", "config", "ground"),
    "transport": ("node", "store", "core", "amqp", "config", "ground"),
    "moving": ("transport", "amqp", "ground"),
    "connection": ("transport", "config", "ground"),
    "publishing": ("connection", "transport", "codec", "amqp", "config", "ground"),
    "consuming": (
        "publishing",
        "connection",
        "transport",
        "codec",
        "amqp",
        "config",
        "ground",
    ),
    "scheduling": ("consuming", "publishing", "connection", "config", "ground"),
    "routing": ("consuming", "publishing", "config", "ground"),
    "telemetry": ("consuming", "publishing", "config", "ground"),
    "broker": (
        "routing",
        "scheduling",
        "server",
        "telemetry",
        "consuming",
        "publishing",
        "connection",
        "transport",
        "config",
        "ground",
    ),
    "asgi": ("broker", "metrics", "routing", "config"),
    "metrics": ("broker", "consuming", "publishing", "ground"),
    "testing": (
        "broker",
        "consuming",
        "publishing",
        "connection",
        "transport",
        "config",
        "ground",
    ),
    "sql": ("broker", "telemetry", "publishing", "codec", "amqp", "config", "ground"),
    "spark": ("broker", "publishing", "connection", "transport", "codec", "config", "ground"),
    "asyncapi": ("consuming", "codec", "config", "ground"),
    "planning": ("connection", "transport", "config", "ground"),
    "cli": (
        "broker",
        "asyncapi",
        "planning",
        "consuming",
        "connection",
        "dashboard",
        "routing",
        "server",
        "moving",
        "node",
        "connection",
        "transport",
        "store",
        "config",
        "ground",
    ),
    "__init__": ("broker", "routing", "consuming", "publishing", "config", "ground"),
    "__main__": (),
}
"""Room: the rooms it may import from. Within a room imports are free, without cycles."""

PURE = ("core", "amqp")
PURE_MAY_USE = (
    "errors",
    "message",
    "runtime.deadlines",
    "runtime.slotted",
    "events.delivery_event",
    "events.stats",
    "amqp",
)
IMPURE = {"asyncio", "socket", "ssl", "time", "random", "os", "logging", "threading", "selectors"}

OWNERS = {
    "aio_pika": ("transport.rabbitmq",),
    "aiormq": ("transport.rabbitmq",),
    "yarl": ("transport.rabbitmq",),
    "pamqp": ("transport.rabbitmq", "amqp", "server"),
    "yaml": ("config.loader", "config.yaml_reader"),
    "pydantic": (
        "asyncapi.schemas",
        "cli.plan",
        "cli.steering",
        "codec.models",
        "config",
        "consuming.handlers",
        "publishing.encoding",
    ),
    "pydantic_core": ("config", "codec.content"),
    "starlette": ("server.http", "dashboard"),
    "httpx": ("dashboard",),
    "uvicorn": ("server.http.listener",),
    "uvloop": ("cli.serve",),
    "watchfiles": ("cli.supervisor",),
    "typer": ("cli",),
    "rich": ("cli",),
    "sqlite3": ("store", "consuming.redeliveries", "consuming.deduplication"),
    "cryptography": ("codec.encryption", "transport.rabbitmq.tls"),
    "msgpack": ("codec.registry",),
    "zstandard": ("codec.compression",),
    "regex": ("core.access_pattern",),
    "redis": ("consuming.redeliveries",),
    "resvg_py": ("cli.png",),
    "opentelemetry": ("tracing",),
    "prometheus_client": ("asgi", "metrics"),
    "fast_depends": ("consuming.dependencies",),
    "fsspec": ("codec.claim_check",),
    "cronsim": ("config.scheduling", "scheduling"),
    "sqlalchemy": ("sql",),
    "pyspark": ("spark",),
    "pyarrow": ("spark",),
}
"""Outside library: the modules that may import it."""

FORBIDDEN = ("aio_pika.connect_robust", "aio_pika.robust_connection", "aio_pika.pool")
"""A second owner of reconnecting, or of channels."""


def within(module: str, patterns: tuple[str, ...]) -> bool:
    """True when `module` is, or lies in a folder that is, one of `patterns`."""
    parts = module.split(".")
    prefixes = [".".join(parts[: length + 1]) for length in range(len(parts))]
    return any(fnmatchcase(prefix, pattern) for pattern in patterns for prefix in prefixes)


def room_of(module: str) -> str:
    first = module.split(".")[0]
    return ROOMS.get(first, first)


def may_import(importer: str, imported: str) -> bool:
    here, there = room_of(importer), room_of(imported)
    return here == there or there in ARROWS[here]


@pytest.mark.parametrize("module", MODULES)
def test_module_is_in_a_room(module: str) -> None:
    assert room_of(module) in ARROWS, f"{module}: put it into a room"


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_arrows(module: str) -> None:
    wrong = [name for name in sorted(imported_modules(module)) if not may_import(module, name)]
    assert not wrong, f"{module} imports {wrong}: no arrow leads from {room_of(module)} there"


def test_every_arrow_is_used() -> None:
    used = {(room_of(m), room_of(name)) for m in MODULES for name in imported_modules(m)}
    drawn = {(here, there) for here, arrows in ARROWS.items() for there in arrows}
    assert drawn - used == set()


def test_arrows_between_rooms_make_no_circle() -> None:
    graph = {here: set(arrows) for here, arrows in ARROWS.items()}
    assert next(iter(TopologicalSorter(graph).static_order())) == "ground"  # raises CycleError


@pytest.mark.parametrize(
    "folder", sorted({"/".join(m.split(".")[:-1]) for m in MODULES if "." in m})
)
def test_folder_says_what_lives_there(folder: str) -> None:
    assert ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text()))


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


@pytest.mark.parametrize("module", [m for m in MODULES if within(m, ("transport",))])
def test_client_meets_broker_in_the_embedded_transport_only(module: str) -> None:
    if not within(module, ("transport.embedded",)):
        broker = ("core", "store", "node")
        assert not [name for name in imported_modules(module) if within(name, broker)]


@pytest.mark.parametrize("module", [m for m in MODULES if not within(m, ("core", "node"))])
def test_nobody_reaches_through_a_node_to_its_engine(module: str) -> None:
    """Outside of the node, commands go to `Node`, and questions to its `view`."""
    reached = [
        each.lineno
        for each in ast.walk(tree(module))
        if isinstance(each, ast.Attribute)
        and each.attr == "engine"
        and "node" in ast.unparse(each.value)
    ]
    assert not reached


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
