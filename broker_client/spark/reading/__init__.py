"""What runs when Spark reads: queues through a spool, RabbitMQ streams by offset.

Reading a queue, in the order of a message:

1. `queue_source`: the readers Spark calls. They plan a batch as a range of segments.
2. `queue_receiver`: the consumer, in the planner's process: one `consuming_session` after another.
3. `segment_store`: writes a segment, then acks its messages.
4. `spool`: the folder of segments between the ack and the end of the batch.
5. `rows`: deliveries as rows, the schema of the source.

Reading a stream (``mode=stream``) needs no spool:

1. `stream_source`: the readers Spark calls. They plan a batch as a range of offsets.
2. `stream_offsets`: finds the end of a stream, and reads a range; runs on executors.
"""
