"""What Spark and the delivery-event log cost, as ratios of two figures of one run."""
