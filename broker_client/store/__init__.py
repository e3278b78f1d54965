"""What a node keeps: nothing, or one SQLite file."""
