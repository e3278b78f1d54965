"""The core running: with a store, a clock and a scan loop."""
