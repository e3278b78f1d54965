"""Spark and the broker: publish from the driver and from executors, read queues as streams.

Needs the extra ``spark``; importing this module does not need it, nor does it
import pyspark. See docs/spark.md.

`datasource` is where Spark begins: it makes the readers in `reading/` and the writers in
`writing/`, whose docstrings list what runs in order. `options` and `endpoints` say from and to
where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker_client.spark.errors import (
    DriverMisuseError,
    FramePublishError,
    MissingExtraError,
    OptionError,
    SinkError,
    SourceError,
    SparkConnectorError,
    SpoolEpochError,
    SpoolError,
    SpoolLockedError,
    SpoolSegmentMissingError,
)
from broker_client.spark.writing.frame_report import FrameReport

if TYPE_CHECKING:
    import os

    from pyspark.sql import SparkSession

    from broker_client.spark.writing.driver_publisher import DriverPublisher

__all__ = [
    "DriverMisuseError",
    "DriverPublisher",
    "FramePublishError",
    "FrameReport",
    "MissingExtraError",
    "OptionError",
    "SinkError",
    "SourceError",
    "SparkConnectorError",
    "SpoolEpochError",
    "SpoolError",
    "SpoolLockedError",
    "SpoolSegmentMissingError",
    "prepare",
    "register",
    "release",
]


def register(spark: SparkSession) -> None:
    """Make ``format("broker")`` known to `spark`.

    Raises:
        MissingExtraError: pyspark or pyarrow is not installed.
    """
    _need("pyspark", "pyarrow")
    from broker_client.spark.datasource import BrokerDataSource, SpeculatingBrokerDataSource

    speculates = spark.conf.get("spark.speculation", "false") == "true"
    spark.dataSource.register(SpeculatingBrokerDataSource if speculates else BrokerDataSource)


def release(spool: str | os.PathLike[str]) -> int:
    """Delete what a batch read has put into `spool`; returns how many rows that was.

    Call it when the rows are safe elsewhere: they were acked, and this is their last copy.

    Raises:
        MissingExtraError: pyarrow is not installed.
        SpoolLockedError: a query uses the spool.
    """
    _need("pyarrow")
    from broker_client.spark.reading.spool import Spool

    opened = Spool(spool, max_bytes=2**62, owner="release")
    opened.open()
    try:
        rows = sum(segment.rows for segment in opened.after(opened.floor))
        opened.release(opened.last_seq)
    finally:
        opened.close()
    return rows


def prepare() -> bool:
    """Set up the environment for a first session: interpreter, path and Java of the workers.

    Returns:
        False when there is no Java.
    """
    from broker_client.spark.environment import prepare as do

    return do()


def _need(*packages: str) -> None:
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package)


def __getattr__(name: str) -> Any:
    """`DriverPublisher`, imported when it is used."""
    if name == "DriverPublisher":
        from broker_client.spark.writing.driver_publisher import DriverPublisher

        return DriverPublisher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
