"""The dashboard: pages for the browser, in front of a management API of ours or RabbitMQ's."""
