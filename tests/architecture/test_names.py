"""One name, one meaning: no two public classes of the package are called the same."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.architecture.source import MODULES, tree

APART = {
    "Credentials": {"config.access", "dashboard.credentials"},
    "Refusal": {"dashboard.refusals", "server.http.errors"},
    "Session": {"dashboard.sessions", "server.session"},
    "Topology": {"connection.topology", "dashboard.topology"},
}
"""Names that the dashboard shares with the client or the server, where both do not meet."""


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == APART
