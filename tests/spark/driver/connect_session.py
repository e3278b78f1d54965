"""Publishes frames of a Spark Connect session, and prints DriverPublisher's error.

Session and frames are real. There is no server: plans are made without one, and refused before one
is asked. In a process of its own, since nothing else here may load what Connect needs.
"""

from __future__ import annotations

import json
import os
import sys

from broker_client.spark import DriverPublisher
from broker_client.spark.errors import DriverMisuseError

HERE = {
    "vhosts": {
        "/": {
            "connection": "embedded://",
            "queues": ["out"],
            "publications": {"to_queue": {"queue": "out"}},
        }
    }
}


def main() -> None:
    from pyspark.errors import PySparkPicklingError
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession(connection="sc://127.0.0.1:1")
    frame = session.range(3).selectExpr("cast(id as string) body")
    said = {"module": type(frame).__module__}
    with DriverPublisher(HERE) as publisher:
        try:
            publisher.publish_frame(frame, "to_queue")
        except DriverMisuseError as error:
            said["publish_frame"] = str(error)
        ticks = session.readStream.format("rate").load()
        try:
            ticks.writeStream.foreachBatch(publisher.foreach_batch("to_queue"))
        except PySparkPicklingError as error:
            said["foreach_batch"] = str(error.__context__)
    sys.stdout.write(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # otherwise the session would release itself at a server, which does not exist


if __name__ == "__main__":
    main()
