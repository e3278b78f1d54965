"""What the client needs of a broker, with two implementations: RabbitMQ and the built-in broker.

A link notices that its connection is lost, and calls `Link.on_close` (see `base`). Nothing here
reconnects: that is `connection/connection.py`.
"""
