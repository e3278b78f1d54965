"""Stores of a node: one SQLite file, or none."""
