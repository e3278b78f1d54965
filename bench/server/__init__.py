"""The built-in broker as a server beside RabbitMQ: ``python -m bench.server``."""
