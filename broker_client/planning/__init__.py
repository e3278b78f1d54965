"""Plans what a configuration changes on a broker, and applies it."""
