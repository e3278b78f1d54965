"""Links to RabbitMQ, through aio-pika's connection. Foreign errors stop here."""
