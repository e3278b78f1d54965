"""The command broker-client."""
