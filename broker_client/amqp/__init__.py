"""AMQP 0-9-1 on the wire: pure functions from values to bytes and back."""
