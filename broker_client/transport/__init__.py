"""What the client needs of a broker, and the two that there are: RabbitMQ and the built-in one."""
