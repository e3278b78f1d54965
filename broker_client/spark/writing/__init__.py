"""What runs when Spark publishes: from executors, and from the driver.

From executors, ``format("broker")``, in the order of a row:

1. `sink`: the writers Spark calls, one for each task.
2. `messages`: rows as messages, and which column means what.
3. `message_ids`: ids that are the same when Spark runs a task or a batch again.
4. `publish_job`: publishes and waits for the confirms.

From the driver: `driver_publisher` feeds a DataFrame to a `Broker`; `frame_report` has its counts.
"""
