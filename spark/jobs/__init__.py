"""Jobs: pure functions from DataFrame to DataFrame, of Spark's own functions only.

So the same code serves batch and stream, and executors need nothing but Spark. A job expects whole
events, each once: `whole` and `deduplicated` of `broker_client.spark.event_log` see to that.
"""

from spark.jobs.archive import archive
from spark.jobs.audit import audit, audit_summary, gaps
from spark.jobs.compact import compact
from spark.jobs.latency import from_histogram, latency, latency_histogram
from spark.jobs.poison import poison, poison_groups
from spark.jobs.reliability import causes, reliability
from spark.jobs.replay import PROPERTIES as REPLAYED_PROPERTIES
from spark.jobs.replay import replay
from spark.jobs.throughput import backlog, throughput

__all__ = [
    "REPLAYED_PROPERTIES",
    "archive",
    "audit",
    "audit_summary",
    "backlog",
    "causes",
    "compact",
    "from_histogram",
    "gaps",
    "latency",
    "latency_histogram",
    "poison",
    "poison_groups",
    "reliability",
    "replay",
    "throughput",
]
