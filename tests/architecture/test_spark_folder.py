"""The folder `spark/`: imports go one way, and Spark is not imported before it is wanted."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

from tests.architecture.source import ROOT

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "spark").rglob("*.py"))
}


def imported(module: str) -> set[str]:
    """Modules of the folder that `module` imports, functions included."""
    names = set[str]()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name in MODULES and name not in (module, "spark")}


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: imported(module) for module in MODULES}
    assert graph["spark.pipeline"] >= {"spark.flights", "spark.jobs"}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("spark.flights") < order.index("spark.pipeline")


def test_command_line_is_there_without_spark() -> None:
    """`--help`, and what is wrong with the arguments, take no JVM and no import of pyspark."""
    code = (
        "import sys, spark.pipeline, spark.arguments; spark.arguments.parser(); "
        "print(any(name.split('.')[0] == 'pyspark' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
