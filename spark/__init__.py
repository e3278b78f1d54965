"""Pipelines over the delivery-event log: `python -m spark.pipeline JOB`. Not part of the wheel."""
