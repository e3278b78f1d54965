"""An archive of the classes that a JVM has loaded, which halves the start of the next one.

Java 13 and newer (JEP 350). A JVM ignores an archive of another Java or of other jars, and a file
that is not an archive. A truncated archive would crash it, so it gets its name when it
is complete, and a session that does not start with one is started without.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("broker_client.spark.class_archive")

S = TypeVar("S")

_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Suppresses some hundred warnings about classes that cannot be archived."""
_DUMP_TIMEOUT = 600.0  # seconds


class ClassArchive:
    """An archive of classes at `path`: used if it exists, else created."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._half_made = self.path.with_name(f".{path.name}.{os.getpid()}")

    def java_options(self) -> str:
        """Options for the command line of the JVM."""
        if self.path.is_file():
            return f"{shlex.quote(f'-XX:SharedArchiveFile={self.path}')} {_QUIET}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={self._half_made}')} {_QUIET}"

    def start(self, create: Callable[[str], S]) -> S:
        """The result of ``create(options)``, called with the options of a JVM.

        If the JVM does not start with the existing archive, the archive is deleted.
        """
        from pyspark.errors import PySparkRuntimeError

        had_one = self.path.is_file()
        try:
            return create(self.java_options())
        except PySparkRuntimeError as error:
            if not had_one or error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
        log.warning(
            "Java does not start with the class archive %s: deleted, to be created again",
            self.path,
        )
        self.path.unlink(missing_ok=True)
        return create(self.java_options())

    def finish(self, session: SparkSession) -> bool:
        """End the session, and its JVM if it creates the archive, which takes some seconds.

        Returns:
            True when an archive was made.
        """
        from pyspark import SparkContext

        gateway = SparkContext._gateway  # noqa: SLF001 - the process that pyspark has started
        session.stop()
        if self.path.is_file() or gateway is None:
            return False
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends it
        gateway.proc.wait(_DUMP_TIMEOUT)
        if not self._half_made.is_file():
            return False
        self._half_made.replace(self.path)
        return True
