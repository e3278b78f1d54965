"""Java's classes as one JVM has loaded them, in a file that the next maps: half the time to start.

Java 13 and newer (JEP 350). A JVM passes over an archive that another Java or other jars have
made, and a file that is not one. A truncated archive would crash it, so it gets its name when it
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
"""No word about classes that cannot be archived: some hundred lines."""
_DUMP_TIMEOUT = 600.0  # seconds


class ClassArchive:
    """An archive of classes at `path`, used where it is there and made where it is not."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._half_made = self.path.with_name(f".{path.name}.{os.getpid()}")

    def java_options(self) -> str:
        """For the command line of the JVM."""
        if self.path.is_file():
            return f"{shlex.quote(f'-XX:SharedArchiveFile={self.path}')} {_QUIET}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={self._half_made}')} {_QUIET}"

    def start(self, create: Callable[[str], S]) -> S:
        """What ``create(options)`` makes with the options of a JVM.

        When the JVM does not come up with the archive that is there, that archive is deleted.
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
        """End the session, and its JVM where it makes the archive: that takes it some seconds.

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
