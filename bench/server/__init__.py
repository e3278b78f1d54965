"""Compares the built-in broker as a server with RabbitMQ: ``python -m bench.server``."""
