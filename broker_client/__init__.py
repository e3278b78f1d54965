"""Declarative asyncio AMQP client with a built-in broker."""
