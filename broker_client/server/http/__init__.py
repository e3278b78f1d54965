"""The management API: HTTP in front of a node, with the paths, codes and JSON of RabbitMQ's."""
