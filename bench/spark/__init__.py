"""Measures the cost of Spark and the delivery-event log, as ratios of two figures of one run."""
