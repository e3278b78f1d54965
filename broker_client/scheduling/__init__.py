"""Schedules: messages at regular times, published by one of the processes that share a schedule."""
