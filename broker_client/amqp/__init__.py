"""AMQP 0-9-1 as bytes, without I/O: frames, properties and tables, encoded and decoded."""
