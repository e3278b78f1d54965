"""Moves messages between queues safely: each copy is confirmed before its original is acked."""
