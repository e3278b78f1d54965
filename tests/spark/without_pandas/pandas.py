"""Stands in front of pandas on the path of Python workers: the extra [spark] does not have it."""

raise ImportError("not in the extra [spark]")
