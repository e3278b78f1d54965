"""Conversion of rascal configurations."""
