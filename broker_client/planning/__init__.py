"""What a configuration would change on a broker, and the change."""
