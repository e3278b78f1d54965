"""Links to a node in this process. Here alone the client meets the broker."""
