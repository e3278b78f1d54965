"""Stands in front of pandas on the path, of workers too: the extra [spark] does not have it."""

raise ImportError("not in the extra [spark]")
