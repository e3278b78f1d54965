"""What the client needs of a broker, with two implementations: RabbitMQ and the built-in broker."""
