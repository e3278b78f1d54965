"""Measurements, side by side with other clients: ``python -m bench``."""
