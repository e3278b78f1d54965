"""A thousand orders into a queue of RabbitMQ, and out of it as a stream."""

import sys

from pyspark.sql import SparkSession

import broker_client.spark
from broker_client.spark import DriverPublisher

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
FOLDER = sys.argv[2] if len(sys.argv) > 2 else "build/orders"

broker_client.spark.prepare()  # interpreter, path and Java of the workers
spark = SparkSession.builder.master("local[2]").getOrCreate()
broker_client.spark.register(spark)  # format("broker")

# the queue: Spark never declares one
DriverPublisher({"vhosts": {"/": {"connection": URL, "queues": ["orders"]}}}).close()

# into it, from the executors
frame = spark.range(1000).selectExpr(
    "cast(id as string) as body", "concat('order-', id) as message_id"
)
frame.write.format("broker").option("url", URL).option("routingKey", "orders").mode("append").save()

# and out of it, as a stream
orders = (
    spark.readStream.format("broker")
    .option("url", URL)
    .option("queue", "orders")
    .option("spool", f"{FOLDER}/spool")
    .load()
)
query = (
    orders.selectExpr("message_id", "cast(body as string) as text", "delivered_at")
    .writeStream.format("parquet")
    .option("path", f"{FOLDER}/table")
    .option("checkpointLocation", f"{FOLDER}/checkpoint")
    .trigger(availableNow=True)  # ends when the queue is empty; without it, never
    .start()
)
query.awaitTermination()
print(spark.read.parquet(f"{FOLDER}/table").count(), "orders in the table")
