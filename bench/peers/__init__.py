"""The clients that are measured, each a process of its own.

A peer is called with a URL and a number of messages. It publishes so many persistent messages to
the durable queue `bench` with confirms, consumes and acks them all, and prints one line of JSON:
the seconds each of the two took, and the versions of what it used.
"""
