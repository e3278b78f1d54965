"""Hides pandas, also from workers: the extra [spark] does not have it."""

raise ImportError("not in the extra [spark]")
