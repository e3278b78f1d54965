"""What is told of messages and brokers: delivery events and their log, statistics, health."""
