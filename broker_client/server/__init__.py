"""The built-in broker on a port: an asyncio shell around a node, for any AMQP 0-9-1 client."""
