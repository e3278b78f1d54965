"""Content to bytes and back, by content type; encryption."""
